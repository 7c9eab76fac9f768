// Watermarks: how many saved bytes have to leave the device, how many may, and how many come back ahead of use.
#pragma once

#include <algorithm>
#include <cstdint>

namespace stagehand::policy {

// What a spiller may keep on the device.
struct KeepLimits {
    uint64_t high_bytes = UINT64_MAX;  // in use on the device: above this number, tensors begin to leave
    uint64_t low_bytes = UINT64_MAX;   // and they stop at this number
    uint64_t keep_bytes = UINT64_MAX;  // saved bytes that stay

    bool watches_use() const { return high_bytes != UINT64_MAX; }
    bool bounds_kept() const { return keep_bytes != UINT64_MAX; }
    bool are_there() const { return watches_use() || bounds_kept(); }
};

// The state of the device's memory at one moment, in bytes.
struct MemoryInUse {
    uint64_t used = 0;     // all of it, as far as it is known
    uint64_t leaving = 0;  // of that, saved bytes whose memory the engine has not given back yet
    uint64_t kept = 0;     // saved bytes that stay and could leave
    uint64_t ahead = 0;    // saved bytes that came back before they were needed
    uint64_t peak = 0;     // the most that was in use in this step before anything came back. 0: not known
};

// Returns the part of `value` that is above a limit.
inline uint64_t above(uint64_t value, uint64_t limit) { return value - std::min(value, limit); }

struct Excess {
    uint64_t must = 0;  // bytes that leave even if the engine's stream has to wait for them
    uint64_t may = 0;   // bytes that leave as far as copies are free; at least `must`
};

// Two watermarks give hysteresis: without it, a step whose use lies at the mark would spill and keep in turn.
class Watermarks {
public:
    explicit Watermarks(const KeepLimits& limits) : limits_(limits) {}

    const KeepLimits& limits() const { return limits_; }
    bool spilling() const { return spilling_; }
    Excess look(const MemoryInUse& now);

    // Returns how many bytes may be on their way to the host before a stream waits for them: `bound`, or more as long
    // as the limits are kept. Memory that nobody needs yet is no reason to wait.
    uint64_t may_be_leaving(const MemoryInUse& now, uint64_t bound) const;
    // Returns how many bytes may be back before they are needed, or on their way. Without limits these are `bound`.
    // With limits, the oldest tensors have left, and come back last: they have time while the kept tensors are used. So
    // they come back as far as the limits are kept and the use stays below its peak, because a backward also allocates
    // gradients. They come back in any case if no more than `bound` bytes are left to use before them.
    uint64_t may_be_ahead(const MemoryInUse& now, uint64_t bound) const;

private:
    KeepLimits limits_;
    bool spilling_ = false;
};

}  // namespace stagehand::policy
