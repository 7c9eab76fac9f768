// Helpers: the devices whose links make a part of a device's copies in one direction.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/device/relay_buffer.h"
#include "transfer/bond/bond.h"

namespace stagehand::core {

// The caller holds the runtime's mutex, if a runtime has helpers, except in open() and the destructor.
class Helpers {
public:
    // For tests: how long a helper must have begun no copies of its own. In force for all.
    static void set_quiet_ns(uint64_t ns);

    // `brief`: the memory of helpers is taken for the time of one call.
    Helpers(Device& device, transfer::Direction direction, bool brief)
        : device_(device), brief_(brief), bond_(device.backend(), direction) {}
    ~Helpers();
    Helpers(const Helpers&) = delete;
    Helpers& operator=(const Helpers&) = delete;

    // Opens the devices that the device's options name. One that cannot be opened is left out, and the log has the
    // reason. May be repeated: it then opens those that consent since. `purpose`: what the copies are for, for the log.
    // `most_pages`: that may be used to measure the link of the device.
    Status open(const std::string& purpose, uint64_t most_pages = UINT64_MAX);
    bool any() const { return !all_.empty(); }
    transfer::Bond& bond() { return bond_; }
    const transfer::Bond& bond() const { return bond_; }

    // Takes the memory of each helper that has none, so that it can help. Memory for one call is not taken of a helper
    // that is busy with copies of its own. The log tells of one that has no memory to spare, or whose memory this
    // device cannot copy from.
    void get_ready();
    // Gives the memory back, after all that uses it. Fails if the device fails, or if a helper may still write host
    // memory.
    Status rest();
    // Uses the helpers that are not busy with copies of their own now.
    void choose() noexcept;
    // For a capture, which only records.
    struct Recording {
        struct Part {
            size_t helper, way;
            uint64_t address, bytes;  // of the memory of the helper that launches use
        };
        std::unique_ptr<transfer::Bond> bond;  // null: no helper is ready
        std::vector<Part> parts;

        void drop_unused();      // the parts that have recorded nothing, once all is recorded
        uint64_t bytes() const;  // that were recorded so far, over the links of helpers
    };
    // Helpers that are ready record a part of the copies. `fork`: an event of the capture.
    Status record(sh_backend_event fork, Recording* out);
    // SH_ERROR_STALE names a helper that cannot take part in launches any more.
    Status can_launch(const Recording& recording);
    // A launch has the memory of all helpers for itself, until the second call, which changes nothing after no launch.
    void begin_launch(const Recording& recording) noexcept;
    void end_launch() noexcept;
    // What helpers and the lane bring from now on comes after this event, which the launch has reached.
    Status follow_launch(const Recording& recording, sh_stream lane, sh_backend_event done);
    // A helper that has a part in the launch may have brought wrong bytes.
    bool is_distrusted(const Recording& recording) const;
    // A launch may use the memory of helpers for an unknown time: no helper is used any more, and its memory is lost.
    void lose_all() noexcept;
    // What helpers would bring now beside the device's own link, in bytes per nanosecond.
    double speed();
    uint64_t bytes() const;  // that helpers have brought

private:
    struct Helper {
        std::string name;  // of the device
        std::unique_ptr<RelayBuffer> buffer;
        size_t way = 0;
        double link = 0;       // speed of its own link
        uint64_t copy_ns = 0;  // what a copy that is timed takes more
        bool refused = false;  // its memory could not be had at the last attempt
    };

    Status add(const std::string& name, const std::string& purpose);
    Status get_ready(Helper& helper);
    void lose(Helper& helper) noexcept;
    bool is_idle(Device& helper) const;

    Device& device_;
    const bool brief_;
    std::vector<std::string> refused_;  // that could not be opened, and are not tried again
    std::vector<Helper> all_;           // outlives the relays
    bool lent_ = false;
    transfer::Bond bond_;
};

}  // namespace stagehand::core
