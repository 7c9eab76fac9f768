// BriefLoans: memory of a device that other devices use for the time of one call.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace stagehand::core {

// Thread-safe.
class BriefLoans {
public:
    void begin() {
        std::lock_guard lock(mutex_);
        active_++;
    }
    void end() {
        std::lock_guard lock(mutex_);
        active_--;
        ended_++;
        changed_.notify_all();
    }
    uint64_t ended() const {
        std::lock_guard lock(mutex_);
        return ended_;
    }
    // Whether memory came back since ended() was `before`. Waits for what is lent now, but not for ever: a driver may
    // have failed. The borrower waits for nothing that the caller has.
    bool wait(uint64_t before) {
        constexpr auto kMost = std::chrono::seconds(30);
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, kMost, [&] { return active_ == 0; });
        return ended_ != before;
    }

private:
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    uint64_t active_ = 0, ended_ = 0;
};

}  // namespace stagehand::core
