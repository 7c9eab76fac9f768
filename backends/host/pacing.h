// Pacing: the speed of a device, and the two links, one for each direction, that all its streams share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "host/settings.h"

namespace stagehand::host {

// One direction. It carries one copy at a time. Its times are model time.
class Link {
public:
    // Takes the link for `duration_ns`, for a copy that is ready at `ready_ns`. Returns the end of the copy.
    uint64_t take(uint64_t ready_ns, uint64_t duration_ns) {
        std::lock_guard lock(mutex_);
        free_at_ns_ = std::max(free_at_ns_, ready_ns) + duration_ns;
        return free_at_ns_;
    }

private:
    std::mutex mutex_;
    uint64_t free_at_ns_ = 0;
};

struct Pacing {
    explicit Pacing(const Settings& settings)
        : bandwidth(settings.bandwidth),
          latency_ns(settings.latency_ns),
          jitter_ns(settings.jitter_ns),
          jitter_seed(settings.jitter_seed) {}

    // Only if the bandwidth is not 0.
    uint64_t copy_duration_ns(uint64_t bytes) const {
        return latency_ns + static_cast<uint64_t>(static_cast<double>(bytes) * 1e9 / static_cast<double>(bandwidth));
    }

    const uint64_t bandwidth;  // 0: not paced, and model time follows the clock
    const uint64_t latency_ns;
    const uint64_t jitter_ns;
    const uint64_t jitter_seed;
    Link to_device;
    Link to_host;
};

}  // namespace stagehand::host
