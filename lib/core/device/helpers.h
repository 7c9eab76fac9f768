// Helpers: the devices whose links make a part of the loads of a device.
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

    explicit Helpers(Device& device) : device_(device), bond_(device.backend()) {}
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

    // Takes the memory of each helper that has none, so that it can help. The log tells of one that has no memory to
    // spare, or whose memory this device cannot copy from.
    void get_ready();
    // Gives the memory back, after all that uses it. Fails if the device fails.
    Status rest();
    // Uses the helpers that are not busy with copies of their own now.
    void choose() noexcept;
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
    std::vector<std::string> refused_;  // that could not be opened, and are not tried again
    std::vector<Helper> all_;           // outlives the relays
    transfer::Bond bond_;
};

}  // namespace stagehand::core
