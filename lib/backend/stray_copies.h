// StrayCopies: copies of a device that has failed. They may go on using host memory, and nobody can wait for them.
#pragma once

#include <atomic>
#include <cstdint>

namespace stagehand {

// Host memory that they may use is never freed. Thread-safe.
class StrayCopies {
public:
    // There may be such copies from now on, until end(), or for ever after give_up().
    void begin() { now_++; }
    void end() { now_--; }
    void give_up() {
        given_up_++;
        now_--;
    }
    // For memory that is taken now.
    uint64_t mark() const { return given_up_; }
    // Whether they may use memory that was taken at this mark.
    bool may_use(uint64_t mark) const { return now_ || given_up_ != mark; }

private:
    std::atomic<uint64_t> now_{0}, given_up_{0};
};

}  // namespace stagehand
