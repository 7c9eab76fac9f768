// CopyLane: a lane of a device, which takes copies between the device and host memory in one direction.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/device/device.h"
#include "transfer/carrier/carrier.h"
#include "transfer/lane/lane.h"

namespace stagehand::core {

// Copies end in the order in which they were queued. A call that fails has waited for what it had queued. Where the
// driver refuses even that, the lane is not settled, and the memory of any copy may still be used, until synchronize()
// succeeds. One caller at a time, except in copy() and synchronize().
//
// What was queued from the end of one trip to that of the next is a trip. Trip 0 has always ended.
//
// A program that packs or unpacks, and begins when the one before has ended, finds the GPU taken by the engine's work
// meanwhile, and the link idles until that has ended. So two more streams take turns, and the next program has its
// place before the link is free.
class CopyLane {
public:
    CopyLane(Device& device, transfer::Direction direction) : device_(device), direction_(direction) {}
    ~CopyLane();
    CopyLane(const CopyLane&) = delete;
    CopyLane& operator=(const CopyLane&) = delete;

    // Borrows the lane. May be repeated after a failure.
    Status open();
    bool is_open() const { return lane_.is_open(); }
    BackendDevice& device() const { return device_.backend(); }
    // What else is queued there comes between the copies.
    sh_stream stream() const { return lane_.stream(); }

    // What is queued from now on comes after the work that is on an engine's stream now, or after a trip of another
    // lane. What is packed comes after the last call's stream only, and after what the lane comes after itself if
    // after_all() follows.
    Status come_after(sh_stream stream);
    Status come_after(const CopyLane& other, transfer::Trip trip) { return other.precede(lane_.stream(), trip); }
    Status after_all() { return fence_ ? record(fence_) : Status(); }

    // Queues a copy between the device and host memory, in the lane's direction.
    Status copy(uint64_t on_device, void* on_host, uint64_t bytes);
    // copy_packed() fails for want of a stream no more.
    Status get_ready_to_pack();
    struct End {  // of a trip
        const CopyLane& lane;
        transfer::Trip trip = 0;
    };
    // Packs elements into host memory, or unpacks them, in the lane's direction, after these trips and beside the copy
    // before it. What the lane is given later comes after it.
    Status copy_packed(const sh_backend_tiles& tiles, std::initializer_list<End> after);
    // Trips have ascending numbers.
    Status end_trip(transfer::Trip* out);
    // The stream waits for the trip.
    Status precede(sh_stream stream, transfer::Trip trip) const;
    bool is_known_to_have_ended(transfer::Trip trip) const { return trip <= over_; }
    Status has_ended(transfer::Trip trip, bool* out);
    // Waits on the host. Not twice, because the error may be that of a copy.
    Status wait(transfer::Trip trip);
    // Records the event after all copies.
    Status record(sh_backend_event event);
    // Waits on the host for all copies.
    Status synchronize();
    bool is_settled() const { return settled_; }

private:
    struct Turn {
        transfer::Lane lane;
        sh_backend_event done = 0;
    };

    Status open(Turn& turn);
    Status queue_packed(const sh_backend_tiles& tiles, std::initializer_list<End> after, bool* out_queued);
    // 0: the trip is known to have ended.
    sh_backend_event event_of(transfer::Trip trip) const { return trip > over_ ? events_[place(trip)] : 0; }
    size_t place(transfer::Trip trip) const { return (trip - first_) % events_.size(); }
    void make_room();

    Device& device_;
    const transfer::Direction direction_;
    transfer::Lane lane_;
    Turn turns_[2];
    size_t next_turn_ = 0;
    std::atomic<bool> settled_ = true;
    sh_backend_event fence_ = 0;            // recorded anew each time: a queued wait keeps the record that it saw
    transfer::Trip over_ = 0, last_ = 0;    // the trips until `over_` have ended
    std::vector<sh_backend_event> events_;  // the circle of those of the others
    transfer::Trip first_ = 0;              // the trip whose event is the first of them
};

}  // namespace stagehand::core
