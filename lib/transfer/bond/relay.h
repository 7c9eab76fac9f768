// Relay: a second way to a device. Bytes cross the link of a helper, another device of the same backend, into a buffer
// in its memory, and the device copies them from there.
#pragma once

#include <cstdint>
#include <span>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/bond/running_speed.h"
#include "transfer/lane/lane.h"
#include "transfer/route/command.h"

namespace stagehand::transfer {

// Copies to the helper run on a stream of the helper, into slots that take turns. The device empties a slot on a stream
// of its own when the copy has come, so the link brings the next slot meanwhile. All waits are for work that was queued
// before. Not thread-safe.
class Relay {
public:
    Relay(BackendDevice& device, BackendDevice& helper)
        : device_(device),
          helper_(helper),
          down_speed_(helper, kPassesBetween),
          across_speed_(device, kPassesBetween) {}
    ~Relay();
    Relay(const Relay&) = delete;
    Relay& operator=(const Relay&) = delete;

    // Uses this memory of the helper from now on, which the device can reach. On failure nothing is held.
    Status open(Lanes& lanes, Lanes& helper_lanes, uint64_t address, uint64_t bytes);
    // Waits until the device uses the memory no more. Sets `out_over` to false if the helper may still write it.
    Status close(bool* out_over);
    bool is_open() const { return across_.is_open(); }

    // Whether the helper copies from this memory without waiting on the host.
    bool takes(const void* memory, uint64_t bytes);
    // Work that follows on the device's stream comes after the event.
    Status follow(sh_backend_event event) { return device_.stream_wait_event(across_.stream(), event); }
    // The helper reads what follows after the event of the device. Else it reads at once, before the device's stream
    // comes to the command.
    Status read_after(sh_backend_event event) { return helper_.stream_wait_event(down_.stream(), event); }
    // Queues the command, which copies to the device. After a failure nothing of it is under way, or settled() is
    // false. `waited`: the events that the device's stream waits for.
    Status bring(const Command& command, std::span<const sh_backend_event> events, WaitSet* waited);
    // Makes a stream of the device wait for all that was brought since the stream's last join. There are two of them.
    enum class Follower : uint8_t { lane, joint };
    Status join(Follower follower, sh_stream stream);
    // Waits on the host until the device writes nothing of it any more.
    Status settle();
    bool settled() const { return settled_; }
    // The same in two parts, for a caller that gives up its lock between them: see idle() and stream(). The second part
    // is told how many slots were passed before the first.
    uint64_t brought() const { return brought_; }
    void settle_after(uint64_t brought) {
        if (brought == brought_) pending_[0] = pending_[1] = false;
    }
    bool idle() const { return settled_ && !pending_[0] && !pending_[1]; }  // nothing was brought since the last joins

    sh_stream stream() const { return across_.stream(); }          // of the device, which empties the slots
    sh_stream stream_of_helper() const { return down_.stream(); }  // of the copies to the helper

    // The speed of the way in bytes per nanosecond: as it is told here, and later as the copies show it, to the helper
    // or from there, whichever is slower. A copy that is timed takes `lone_copy_ns` more than its bytes do.
    void set_speed(double bytes_per_ns, uint64_t lone_copy_ns);
    double speed() const;

private:
    static constexpr uint32_t kSlots = 6;
    static constexpr uint64_t kPassesBetween = 256;  // from one sample of the speed to the next

    struct Slot {
        uint64_t address = 0;
        sh_backend_event filled = 0;   // of the helper
        sh_backend_event emptied = 0;  // of the device
    };

    Status make(Lanes& lanes, Lanes& helper_lanes, uint64_t address, uint64_t bytes);
    Status queue(const Command& command, std::span<const sh_backend_event> events, WaitSet* waited);
    Status pass(Slot& slot, uint64_t to, const void* from, uint64_t bytes);
    void forget();

    BackendDevice& device_;
    BackendDevice& helper_;
    Lane across_;  // of the device
    Lane down_;    // of the helper
    Slot slots_[kSlots];
    uint64_t slot_bytes_ = 0;
    uint32_t next_ = 0;
    sh_backend_event last_ = 0;         // `emptied` of the slot that was used last
    bool pending_[2] = {false, false};  // for each follower: something was brought since its last join
    bool settled_ = true;
    RunningSpeed down_speed_, across_speed_;
    uint64_t brought_ = 0;
};

}  // namespace stagehand::transfer
