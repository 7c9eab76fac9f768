// Helpers: the devices whose links make a part of the loads of a device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/helpers/relay_buffer.h"
#include "transfer/carrier/carrier.h"

namespace stagehand::core {

// Gives the carrier of a runtime its relays, and sees to the memory of the helpers that they need. The caller holds the
// runtime's mutex, if a runtime has helpers, except in open() and the destructor.
class Helpers {
public:
    // For tests: how long a helper must have begun no copies of its own. In force for all.
    static void set_quiet_ns(uint64_t ns);

    Helpers(Device& device, transfer::Carrier& carrier) : device_(device), carrier_(carrier) {}
    ~Helpers();
    Helpers(const Helpers&) = delete;
    Helpers& operator=(const Helpers&) = delete;

    // Opens the devices that the device's options name, before the first load. One that cannot be opened is left out,
    // and the log has the reason. `purpose`: what the copies are for, for the log. `most_pages`: that may be used to
    // measure the link of the device.
    Status open(const std::string& purpose, uint64_t most_pages);

    // Takes the memory of each helper that has none, so that it can help. The log tells of one that has no memory to
    // spare, or whose memory this device cannot copy from.
    void get_ready();
    // Gives the memory back, after all that uses it. Fails if the device fails.
    Status rest();
    // What helpers would bring now beside the device's own link, in bytes per nanosecond.
    double speed() const;

private:
    struct Helper {
        std::unique_ptr<RelayBuffer> buffer;
        size_t way = 0;
        double link = 0;       // speed of its own link
        uint64_t copy_ns = 0;  // what a copy that is timed takes more
        bool refused = false;  // its memory could not be had at the last attempt
    };

    Status add(const std::string& name, const std::string& purpose);
    Status get_ready(Helper& helper);
    void lose(Helper& helper) noexcept;

    Device& device_;
    transfer::Carrier& carrier_;
    std::vector<Helper> all_;
};

}  // namespace stagehand::core
