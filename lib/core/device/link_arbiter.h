// LinkArbiter: one direction of a device's link, which weights and saved tensors share. Links: both directions.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "policy/link_share.h"
#include "transfer/lane/lane.h"

namespace stagehand::core {

// Thread-safe. Callers may hold locks of their own, and no call waits or allocates. The runtimes tell of their weights,
// and the spillers ask. While there is no spiller, the calls of runtimes do nothing.
class LinkArbiter {
public:
    void set_rate(double bytes_per_ns) {
        std::lock_guard lock(mutex_);
        share_.set_rate(bytes_per_ns);
    }
    void spiller_opens() { spillers_.fetch_add(1, std::memory_order_relaxed); }
    void spiller_closes() { spillers_.fetch_sub(1, std::memory_order_relaxed); }

    // The device has begun copies of its own, which come before those of its neighbours.
    void note_use(uint64_t now_ns) { last_use_ns_.store(now_ns, std::memory_order_relaxed); }
    uint64_t last_use_ns() const { return last_use_ns_.load(std::memory_order_relaxed); }  // 0: none yet

    void passed(uint64_t ns) {
        if (!spillers_.load(std::memory_order_relaxed)) return;
        std::lock_guard lock(mutex_);
        share_.passed(ns);
    }
    uint64_t weights_queued(uint64_t bytes, uint64_t ahead_ns) {
        if (!spillers_.load(std::memory_order_relaxed)) return 0;
        std::lock_guard lock(mutex_);
        return share_.weights_queued(bytes, ahead_ns);
    }
    uint64_t saved_queued(uint64_t bytes) {
        std::lock_guard lock(mutex_);
        return share_.saved_queued(bytes);
    }
    void arrived(uint64_t mark) {
        if (!spillers_.load(std::memory_order_relaxed)) return;
        std::lock_guard lock(mutex_);
        share_.arrived(mark);
    }
    bool has_room(uint64_t before, uint64_t due) const {
        std::lock_guard lock(mutex_);
        return share_.has_room(before, due);
    }
    uint64_t position() const {
        std::lock_guard lock(mutex_);
        return share_.position();
    }

private:
    std::atomic<uint32_t> spillers_{0};
    std::atomic<uint64_t> last_use_ns_{0};
    mutable std::mutex mutex_;
    policy::LinkShare share_;
};

struct Links {
    LinkArbiter to_device, to_host;

    LinkArbiter& of(transfer::Direction direction) {
        return direction == transfer::Direction::to_device ? to_device : to_host;
    }
    // An engine computes for so long, from the use of weights to which it has come until the next one.
    void passed(uint64_t ns) {
        to_device.passed(ns);
        to_host.passed(ns);
    }
};

}  // namespace stagehand::core
