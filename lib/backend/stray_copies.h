// StrayCopies: copies of a device that has failed. They may go on using host memory, and nobody can wait for them.
#pragma once

#include <atomic>
#include <cstdint>

namespace stagehand {

// Host memory that was taken before such a failure is never freed. Thread-safe.
class StrayCopies {
public:
    // Those of all devices: any device may copy from and to memory that was pinned for another one.
    static StrayCopies& of_process() {
        static StrayCopies all;
        return all;
    }

    // A device has failed, and may have such copies.
    void begin() { failures_++; }
    // For memory that is taken now.
    uint64_t mark() const { return failures_; }
    // Whether they may use memory that was taken at this mark.
    bool may_use(uint64_t mark) const { return failures_ > mark; }

private:
    std::atomic<uint64_t> failures_ = 0;
};

}  // namespace stagehand
