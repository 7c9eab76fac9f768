// Links: the two directions between host and simulated device, in virtual time.
#pragma once

#include <cstdint>
#include <map>

#include "sim/settings.h"

namespace stagehand::sim {

enum class Direction {
    to_device,
    to_host
};

// A direction carries one copy at a time. A copy takes the first gap after it is ready that it fits into: one
// that waits for something far ahead does not hold up those queued after it. What both directions reach
// together is bounded by the duplex factor: the copy that was queued first keeps its speed, and one of the
// other direction gets what is left of it meanwhile.
class Links {
public:
    explicit Links(const Settings& settings)
        : ns_per_byte_(1e9 / static_cast<double>(settings.bandwidth)),
          left_(settings.duplex - 1),
          latency_ns_(settings.latency_ns) {}

    // Takes a direction for a copy that is ready at `ready_ns`; no later call is ready before `now_ns`.
    // Returns when it ends.
    uint64_t copy(Direction direction, uint64_t now_ns, uint64_t ready_ns, uint64_t bytes);

private:
    using Busy = std::map<uint64_t, uint64_t>;  // begin to end; neighbours are merged

    uint64_t end_of_copy(const Busy& other, uint64_t start_ns, uint64_t bytes) const;

    const double ns_per_byte_;
    const double left_;  // share of the speed that a direction has while the other is busy: 0 to 1
    const uint64_t latency_ns_;
    Busy busy_[2];
};

}  // namespace stagehand::sim
