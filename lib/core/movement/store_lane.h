// StoreLane: the copies of a runtime's write-backs, which helpers may have a part in.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "core/device/device.h"
#include "core/device/helped_lane.h"
#include "transfer/route/issue.h"

namespace stagehand::core {

// A helper's failure is none of the device's, so the event of a copy comes all the same. The bytes are right if the
// helper works after that. Until somebody has asked, the changed bytes must stay on the device. The caller holds the
// runtime's mutex in all methods that do not say otherwise.
class StoreLane {
public:
    // What helpers have of a write-back.
    struct Trace {
        bool any = false;
        size_t distrusted = 0;  // helpers, when it was begun
    };

    explicit StoreLane(Device& device)
        : device_(device.backend()), lane_(device, transfer::Direction::to_host, false) {}

    // The caller holds no runtime's mutex.
    Status open(const std::string& runtime);
    sh_stream stream() const { return lane_.stream(); }  // of the device's own link
    // Helpers come if so many bytes are worth their memory, and else go.
    Status take_helpers(uint64_t bytes);
    Status rest() { return lane_.disband(); }
    uint64_t helped_bytes() const { return lane_.helped_bytes(); }
    double helpers_speed() { return lane_.helpers_speed(); }

    // Queues the commands: one that only waits, and copies to the host. `may_help`: helpers may copy a part. They do if
    // there are many bytes. Not while in_doubt(). After a failure, copies of helpers may be under way: in_doubt()
    // tells.
    // `*out_lost`: the failure is that of a helper, so that the own link can write all.
    Status issue(std::span<const transfer::Command> commands, std::span<const sh_backend_event> waits, bool may_help,
                 Trace* trace, transfer::Issued* out, bool* out_lost);
    // Records the event after all that was queued.
    Status record(sh_backend_event event);
    // To be asked after the event of the copies has come.
    bool is_right(const Trace& trace);
    // Copies of helpers that have failed, or that a failure has broken off, may still write host memory. Nothing else
    // may write there before this has ended. To end it: settle(), which waits and needs no mutex, and then
    // note_settled().
    bool in_doubt() const;
    struct Doubt {
        size_t distrusted = 0;    // helpers
        uint64_t broken_off = 0;  // failed calls that have left copies of helpers
        bool operator==(const Doubt&) const = default;
    };
    Doubt doubt() const { return {lane_.distrusted(), broken_off_}; }
    Status settle();
    void note_settled(const Doubt& before) { settled_ = before; }
    Status synchronize() { return lane_.synchronize(); }  // needs no mutex

private:
    Status issue_helped(std::span<const transfer::Command> commands, std::span<const sh_backend_event> waits,
                        transfer::Issued* out);
    Status issue_alone(std::span<const transfer::Command> commands, std::span<const sh_backend_event> waits,
                       transfer::Issued* out);

    BackendDevice& device_;
    HelpedLane lane_;
    transfer::WaitSet waited_;  // by the lane, of the call under way
    uint64_t broken_off_ = 0;
    Doubt settled_;  // what has ended
};

}  // namespace stagehand::core
