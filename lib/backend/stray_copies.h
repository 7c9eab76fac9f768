// StrayCopies: copies of a device that has failed. They may go on using host memory, and nobody can wait for them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>

namespace stagehand {

// Host memory that they may use is never freed. Such copies use no memory that was taken after the failure.
// Thread-safe.
class StrayCopies {
public:
    // Those of all devices: any device may copy from and to memory that was pinned for another one.
    static StrayCopies& of_process() {
        static StrayCopies all;
        return all;
    }

    // A device has failed, and may have such copies until end(), or for ever after give_up(). Returns its number.
    uint64_t begin() {
        std::lock_guard lock(mutex_);
        now_++;
        return ++begun_;
    }
    void end() {
        std::lock_guard lock(mutex_);
        now_--;
    }
    void give_up(uint64_t number) {
        std::lock_guard lock(mutex_);
        now_--;
        given_up_ = std::max(given_up_, number);
    }

    // For memory that is taken now.
    uint64_t mark() const {
        std::lock_guard lock(mutex_);
        return begun_;
    }
    // Whether they may use memory that was taken at this mark. True for some other memory, too, while several devices
    // may have such copies.
    bool may_use(uint64_t mark) const {
        std::lock_guard lock(mutex_);
        return begun_ > mark && (now_ || given_up_ > mark);
    }

private:
    mutable std::mutex mutex_;
    uint64_t begun_ = 0, now_ = 0;
    uint64_t given_up_ = 0;  // the last number
};

}  // namespace stagehand
