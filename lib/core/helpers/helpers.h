// Helpers: a carrier with the devices whose links bring a part of the loads of a device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/helpers/relay_buffer.h"
#include "transfer/carrier/helped_carrier.h"

namespace stagehand::core {

// Makes the relays, and sees to the memory of the helpers that they need. The caller of get_ready(), rest() and
// speed_beside() holds the runtime's mutex.
class Helpers final : public transfer::HelpedCarrier {
public:
    // For tests: how long a helper must have begun no copies of its own. In force for all.
    static void set_quiet_ns(uint64_t ns);

    // `purpose`: what the copies are for, for the log. `most_pages`: that may be used to measure the link of the
    // device.
    Helpers(Device& device, std::string purpose, uint64_t most_pages);
    ~Helpers() override;

    // Also opens the devices that the device's options name. One that cannot be opened is left out, and the log has the
    // reason.
    Status open(transfer::Lanes& lanes) override;
    // Takes the memory of each helper that has none, so that it can help. The log tells of one that has no memory to
    // spare, or whose memory this device cannot copy from.
    void get_ready() override;
    Status rest() override;
    double speed_beside() const override;

private:
    struct Helper {
        std::unique_ptr<RelayBuffer> buffer;
        size_t way = 0;
        double link = 0;       // speed of its own link
        uint64_t copy_ns = 0;  // what a copy that is timed takes more
        bool refused = false;  // its memory could not be had at the last attempt
    };

    Status open_helper(const std::string& name);
    Status get_ready(Helper& helper);
    void lose(Helper& helper) noexcept;

    Device& device_;
    const std::string purpose_;
    const uint64_t most_pages_;
    std::vector<Helper> all_;
};

}  // namespace stagehand::core
