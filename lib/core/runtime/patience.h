// Patience: a limited wait for a condition that no event reports. The caller checks it again after pauses that grow
// longer.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace stagehand::core {

class Patience {
public:
    explicit Patience(uint64_t ns) : ns_(std::min<uint64_t>(ns, INT64_MAX)) {}

    bool is_over() const { return left().count() <= 0; }

    // Waits until the next check is due, or until `done` holds.
    template <class Done>
    void pause(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Done&& done) {
        changed.wait_for(lock, std::min(next_, left()), done);
        next_ = std::min(2 * next_, kLongestPause);
    }

private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::nanoseconds kFirstPause = std::chrono::microseconds(100),
                                              kLongestPause = std::chrono::milliseconds(5);

    std::chrono::nanoseconds left() const { return ns_ - (Clock::now() - began_); }

    const std::chrono::nanoseconds ns_;
    const Clock::time_point began_ = Clock::now();
    std::chrono::nanoseconds next_ = kFirstPause;
};

}  // namespace stagehand::core
