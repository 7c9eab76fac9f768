// Relay: a second way to a device. Bytes cross the link of a helper, another device of the same backend, and a buffer
// in its memory. The device copies them from there.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/carrier/running_speed.h"
#include "transfer/lane/lane.h"
#include "transfer/route/command.h"

namespace stagehand::transfer {

// Copies of the helper run on a stream of the helper, and those of the device on a stream of its own. Slots of the
// buffer take turns, so that one is filled while another is emptied. All waits are for work that was queued before. Not
// thread-safe.
class Relay {
public:
    Relay(BackendDevice& device, BackendDevice& helper)
        : device_(device), helper_(helper), across_(device), link_(helper) {}
    ~Relay();
    Relay(const Relay&) = delete;
    Relay& operator=(const Relay&) = delete;

    // Uses this memory of the helper from now on, which the device can reach. On failure nothing is held.
    Status open(Lanes& lanes, Lanes& helper_lanes, uint64_t address, uint64_t bytes);
    // Waits until nothing is copied to the device any more. Fails if the device fails. Sets `out_over` to false if the
    // helper may still write its own memory.
    Status close(bool* out_over);
    bool is_open() const { return across_.lane.is_open(); }

    // Whether the helper copies from this memory without waiting on the host.
    bool takes(const void* memory, uint64_t bytes);
    // Work that follows on the device's stream comes after the event.
    Status follow(sh_backend_event event) { return device_.stream_wait_event(across_.stream(), event); }
    // The helper copies what follows after the event of the device. Else it reads host memory at once, before the
    // device's stream comes to the command.
    Status copy_after(sh_backend_event event) { return helper_.stream_wait_event(link_.stream(), event); }
    // Queues the command, which copies to the device. After a failure nothing of it is under way, or
    // settled() is false. `waited`: the events that the device's stream waits for.
    Status bring(const Command& command, std::span<const sh_backend_event> events, WaitSet* waited);
    // Makes a stream of the device wait for all that was brought since the stream's last join. There are two of them.
    enum class Follower : uint8_t { lane, joint };
    Status join(Follower follower, sh_stream stream);
    // Waits on the host until nothing of it is copied to the device any more. Fails if the device fails. A helper that
    // fails may still read host memory: see may_read().
    Status settle();
    bool settled() const { return settled_; }
    // Fails if the helper has failed. Else it may find out that all its copies have ended.
    Status check();
    // A failure of the helper now may be that of a copy.
    bool is_at_work() const { return at_work_.load(std::memory_order_relaxed); }
    // The helper has failed, so that what was copied before may be wrong.
    bool is_distrusted() const { return helper_failed_.load(std::memory_order_relaxed); }
    // settle() in two parts, for a caller that gives up its lock between them: see idle(), streams() and wait_for().
    // The second part is told how many slots were passed before the first.
    uint64_t brought() const { return brought_; }
    void settle_after(uint64_t brought) {
        if (brought == brought_) pending_[0] = pending_[1] = false;
    }
    bool idle() const { return settled_ && !pending_[0] && !pending_[1]; }  // nothing was brought since the last joins

    sh_stream stream() const { return across_.stream(); }  // of the device, on which commands end
    struct Streams {
        sh_stream of_device, of_helper;
    };
    Streams streams() const { return {across_.stream(), link_.stream()}; }
    // The first part of settle().
    Status wait_for(Streams streams);

    // The speed of the way in bytes per nanosecond: as it is told here, and later as the copies show it, over the
    // link or between the devices, whichever is slower. A copy that is timed takes `lone_copy_ns` more than its bytes
    // do.
    void set_speed(double bytes_per_ns, uint64_t lone_copy_ns);
    double speed() const;

private:
    static constexpr uint32_t kSlots = 6;
    static constexpr uint64_t kPassesBetween = 256;  // from one sample of the speed to the next

    // The copies of one of the two devices: between the devices, or over the helper's link.
    struct Half {
        explicit Half(BackendDevice& of) : device(of), speed(of, kPassesBetween) {}
        sh_stream stream() const { return lane.stream(); }

        BackendDevice& device;
        Lane lane;
        RunningSpeed speed;
    };
    struct Slot {
        uint64_t address = 0;
        bool used = false;
        sh_backend_event filled = 0;   // of the helper
        sh_backend_event emptied = 0;  // of the device
    };

    Status make(Lanes& lanes, Lanes& helper_lanes, uint64_t address, uint64_t bytes);
    // The event after what the helper has copied last, or one that nothing has used yet.
    sh_backend_event helpers_last() const { return slots_[(next_ + kSlots - 1) % kSlots].filled; }
    Status queue(const Command& command, std::span<const sh_backend_event> events, WaitSet* waited);
    Status pass(Slot& slot, uint64_t on_device, const void* on_host, uint64_t bytes);
    template <class Copy>
    Status copy_half(Half& half, sh_backend_event after, sh_backend_event done, uint64_t bytes, Copy&& copy);
    void forget();

    BackendDevice& device_;
    BackendDevice& helper_;
    Half across_;  // by the device, from the buffer
    Half link_;    // by the helper, to the buffer
    Slot slots_[kSlots];
    uint64_t slot_bytes_ = 0;
    uint32_t next_ = 0;
    sh_backend_event last_ = 0;         // `emptied` of the slot that was used last
    bool pending_[2] = {false, false};  // for each follower: something was brought since its last join
    bool settled_ = true;
    uint64_t brought_ = 0;
    // `at_work_`: the helper is not known to have ended its copies. `strays_`: see StrayCopies.
    std::atomic<bool> helper_failed_{false}, at_work_{false}, strays_{false};
};

}  // namespace stagehand::transfer
