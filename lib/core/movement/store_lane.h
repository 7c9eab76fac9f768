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
// runtime's mutex in all methods.
class StoreLane {
public:
    // What helpers have of a write-back.
    struct Trace {
        bool any = false;
        size_t distrusted = 0;  // helpers, when it was begun
    };

    explicit StoreLane(Device& device) : device_(device.backend()), lane_(device, transfer::Direction::to_host, false) {}

    // The caller holds no runtime's mutex.
    Status open(const std::string& runtime);
    sh_stream stream() const { return lane_.stream(); }  // of the device's own link
    // Helpers come if so many bytes are worth their memory, and else go.
    Status take_helpers(uint64_t bytes);
    Status rest() { return lane_.disband(); }
    uint64_t helped_bytes() const { return lane_.helped_bytes(); }

    // Queues the commands: one that only waits, and copies to the host. `may_help`: helpers may copy a part. They do if
    // there are many bytes. After a failure, nothing of helpers is under way once end_doubts() has succeeded.
    Status issue(std::span<const transfer::Command> commands, std::span<const sh_backend_event> waits, bool may_help,
                 Trace* trace, transfer::Issued* out);
    // Records the event after all that was queued.
    Status record(sh_backend_event event) { return lane_.record(event); }
    // To be asked after the event of the copies has come.
    bool is_right(const Trace& trace);
    // What helpers that have failed had queued writes host memory no more after this. Waits for that. To be called
    // before a source is written again.
    Status end_doubts();
    Status synchronize() { return lane_.synchronize(); }

private:
    Status issue_helped(std::span<const transfer::Command> commands, std::span<const sh_backend_event> waits,
                        transfer::Issued* out);
    Status issue_alone(std::span<const transfer::Command> commands, std::span<const sh_backend_event> waits,
                       transfer::Issued* out);

    BackendDevice& device_;
    HelpedLane lane_;
    transfer::WaitSet waited_;  // by the lane, of the call under way
    bool broken_off_ = false;   // a failed call has left copies of helpers
    size_t settled_ = 0;        // helpers that have failed, and write no more
};

}  // namespace stagehand::core
