// Links: the two directions between the host and the simulated device, in virtual time.
#pragma once

#include <cstdint>
#include <map>

#include "sim/settings.h"

namespace stagehand::sim {

enum class Direction { to_device, to_host };

// A direction carries one copy at a time. A copy takes the first gap that it fits into after it is ready. So a copy
// that waits for a distant event does not delay the copies that are queued after it. The duplex factor limits the speed
// of both directions together. The copy that was queued first keeps its speed, and a copy in the other direction gets
// the rest of the speed meanwhile.
class Links {
public:
    explicit Links(const Settings& settings)
        : ns_per_byte_(1e9 / static_cast<double>(settings.bandwidth)),
          later_ns_per_byte_(settings.later_bandwidth ? 1e9 / static_cast<double>(settings.later_bandwidth)
                                                      : ns_per_byte_),
          later_from_ns_(settings.later_from_ns),
          left_(settings.duplex - 1),
          latency_ns_(settings.latency_ns) {}

    // Takes a direction for a copy that is ready at `ready_ns`. No later call may be ready before `now_ns`. Returns the
    // end of the copy.
    uint64_t copy(Direction direction, uint64_t now_ns, uint64_t ready_ns, uint64_t bytes);

private:
    using Busy = std::map<uint64_t, uint64_t>;  // begin to end; neighbours are merged

    uint64_t end_of_copy(const Busy& other, uint64_t start_ns, uint64_t bytes) const;

    const double ns_per_byte_, later_ns_per_byte_;
    const uint64_t later_from_ns_;
    const double left_;  // share of the speed, from 0 to 1, that a direction has while the other is busy
    const uint64_t latency_ns_;
    Busy busy_[2];
};

}  // namespace stagehand::sim
