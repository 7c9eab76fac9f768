// Carrier: a way of copies to a device. StraightCarrier: the device's own link.
#pragma once

#include <cstdint>
#include <span>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/carrier/issue.h"
#include "transfer/lane/lane.h"

namespace stagehand::transfer {

// The number of a trip: the copies of one load, or of one sequence of copies. 0: it is right when its event has come.
using Trip = uint64_t;
// Whether the bytes of a trip are right.
enum class Answer : uint8_t { right, unknown, wrong };

// Copies that are queued at once. Waits are as for transfer::issue().
struct Cargo {
    std::span<const Command> commands;
    std::span<const sh_backend_event> events;
    WaitSet* waited = nullptr;
    Issued* issued = nullptr;    // is added to
    CopyMeter* meter = nullptr;  // times some of the copies over the own link
    bool whole = false;          // all of it comes on one stream
};

// An adaptor is a carrier over another one, beside which other ways bring a part. A carrier without one has no answer
// but the events of its trips, as the methods with a body here tell. The copies of different trips run side by side,
// unless a trip says that it comes after all others. Thread-safe. One thread at a time queues copies of a trip.
class Carrier {
public:
    Carrier() = default;
    virtual ~Carrier() = default;
    Carrier(const Carrier&) = delete;
    Carrier& operator=(const Carrier&) = delete;

    // A copy of fewer bytes comes over the own link.
    static uint64_t least_bytes();
    // For tests with small blocks. In force for all.
    static void set_least_bytes(uint64_t bytes);

    virtual Status open(Lanes& lanes) = 0;
    virtual sh_stream stream() const = 0;  // of what the own link brings

    // --- Trips

    // `after_all`: its copies are written after all that were queued before. `written`: the sources are whole after
    // this event, which is among those of the commands.
    virtual Status begin(bool, sh_backend_event, Trip* out) {
        *out = 0;
        return Status();
    }
    // Queues copies of the trip, or of none. `*stream`: of those that the own link brings. After whole cargo, also if
    // that has failed, it is the stream of the device on which the last copy is queued.
    virtual Status carry(Trip trip, sh_stream* stream, const Cargo& cargo) = 0;
    // Makes the own stream wait for all copies that were queued so far.
    virtual Status join() { return Status(); }
    // Records the event after all copies that were queued so far. The own stream does not wait.
    virtual Status finish(sh_backend_event done) = 0;
    // All copies of the trip are queued, or none any more. Returns what ask() takes.
    virtual Trip end(Trip) { return 0; }
    virtual Answer ask(Trip) const { return Answer::right; }
    // Waits on the host for all copies that were queued, and for the events of finish().
    virtual Status synchronize() = 0;

    // Finds out about trips that are not known. Never waits.
    virtual void look() {}
    virtual uint64_t times_wrong() const { return 0; }  // how often some were found to be wrong

    // --- What comes beside the own link

    virtual size_t ways() const { return 1; }
    // A smaller piece has only one way. 0: all have.
    uint64_t least_piece() const { return ways() > 1 ? least_bytes() : 0; }
    virtual uint64_t bytes_beside() const { return 0; }  // until now
    virtual double speed_beside() const { return 0; }    // that can be had now, in bytes per nanosecond
    // Takes what the other ways need, and gives it back. No trip is under way. rest() fails if the device fails.
    virtual void get_ready() {}
    virtual Status rest() { return Status(); }
};

class StraightCarrier final : public Carrier {
public:
    explicit StraightCarrier(BackendDevice& device) : device_(device) {}

    Status open(Lanes& lanes) override { return lanes.lend(Direction::to_device, &lane_); }
    sh_stream stream() const override { return lane_.stream(); }
    Status carry(Trip, sh_stream* stream, const Cargo& cargo) override {
        return issue(device_, *stream, cargo.commands, cargo.events, cargo.waited, cargo.issued, cargo.meter);
    }
    Status finish(sh_backend_event done) override { return device_.event_record(done, lane_.stream()); }
    Status synchronize() override { return lane_.is_open() ? device_.stream_synchronize(lane_.stream()) : Status(); }

private:
    BackendDevice& device_;
    Lane lane_;
};

}  // namespace stagehand::transfer
