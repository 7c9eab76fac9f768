// Bond: the link of a device and the relays of its helpers, which bring the copies of a load together.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/bond/deal.h"
#include "transfer/bond/relay.h"
#include "transfer/route/issue.h"

namespace stagehand::transfer {

// All copies of a load that came before a load, on whichever way, end before the copies of that load write. So loads
// write one after the other, as on one stream. Not thread-safe.
class Bond {
public:
    // A copy of fewer bytes is left to the device's own link.
    static constexpr uint64_t kLeastBytes = 2 << 20;

    explicit Bond(BackendDevice& device) : device_(device) {}
    ~Bond();
    Bond(const Bond&) = delete;
    Bond& operator=(const Bond&) = delete;

    // Adds a way, which the caller opens and closes. Returns its number.
    size_t add(std::unique_ptr<Relay> relay);
    Relay& relay(size_t way) { return *ways_[way].relay; }
    // Whether the way is used for now. A way that has failed is not used any more, whatever is said here.
    void use(size_t way, bool use) { ways_[way].wanted = use; }
    const Status& failure(size_t way) const { return ways_[way].failure; }
    uint64_t bytes(size_t way) const { return ways_[way].bytes; }  // that it has brought
    // The speed of the device's own link, in bytes per nanosecond.
    void set_own_speed(double bytes_per_ns) { own_speed_ = bytes_per_ns; }
    // What the ways in use bring, in addition to the own link.
    double speed_in_use() const;

    // Before the copies of a load whose stream is `lane`, always the same.
    Status begin(sh_stream lane);
    // The same as transfer::issue(), over all ways.
    Status issue(sh_stream lane, std::span<const Command> commands, std::span<const sh_backend_event> events,
                 WaitSet* waited, Issued* out, CopyMeter* meter = nullptr);
    // Makes the lane wait for what the relays bring. Called when all copies of a load are queued.
    Status join(sh_stream lane);
    // Waits on the host for the relays.
    Status synchronize();

private:
    struct Way {
        std::unique_ptr<Relay> relay;
        bool wanted = false;
        bool used = false;  // by the present load
        uint64_t bytes = 0;
        WaitSet waited;
        Status failure;

        bool usable() const { return wanted && failure.ok() && relay->is_open(); }
    };
    struct Part {
        size_t way = 0;
        Command command;
    };

    bool divide(std::span<const Command> commands);
    void divide(const Command& command);
    Status note_beginning(sh_stream lane);
    Status bring(std::span<const sh_backend_event> events);
    Status bring(Way& way, const Command& command, std::span<const sh_backend_event> events);

    BackendDevice& device_;
    std::vector<Way> ways_;
    double own_speed_ = 0;
    sh_backend_event begun_ = 0;  // recorded when a load begins
    bool is_begun_ = false;       // it was recorded for the present load
    std::vector<DealtLink> links_;  // the own one, then the ways
    std::vector<Command> own_;              // of the call under way: what the own link brings
    std::vector<Part> parts_;               // and what relays bring
    std::vector<Command> left_;             // and what they could not bring
    bool is_cut_ = false;                   // the last command was divided
};

}  // namespace stagehand::transfer
