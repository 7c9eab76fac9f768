// Bell: the workers wait for it. The engine wakes one of them when there may be work.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace stagehand::transfer {

// Guarded by the mutex of the waits.
class Bell {
public:
    using Lock = std::unique_lock<std::mutex>;

    // Wakes one waiting worker.
    void wake() {
        wakes_++;
        if (waiting_ > 0) rung_.notify_one();
    }
    void wake_all() { rung_.notify_all(); }
    void wait(Lock& lock) {
        waiting_++;
        rung_.wait(lock);
        waiting_--;
    }
    void wait_for(Lock& lock, std::chrono::microseconds longest) {
        waiting_++;
        rung_.wait_for(lock, longest);
        waiting_--;
    }
    bool anyone_waits() const { return waiting_ > 0; }
    // The number of calls of wake(). It tells a worker that did not wait whether it missed a call.
    uint64_t wakes() const { return wakes_; }

private:
    std::condition_variable rung_;
    uint32_t waiting_ = 0;
    uint64_t wakes_ = 0;
};

}  // namespace stagehand::transfer
