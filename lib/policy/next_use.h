// NextUse: when each unit is used next, from a recorded trace that repeats. The unit whose next use is furthest in the
// future is evicted first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/plan.h"

namespace stagehand::policy {

class NextUse {
public:
    static constexpr uint64_t never = UINT64_MAX;

    // `units`: the number of units. Uses of other units are ignored.
    NextUse(std::span<const Use> trace, uint32_t units);

    // The number of uses from the one at `position` to the unit's next use. `position` is any number, because the trace
    // is a cycle. The result is 1 for the very next use, and the trace's length if the use at `position` is the unit's
    // only use. O(log uses).
    uint64_t uses_until(uint32_t unit, uint64_t position) const;

    // The index of the candidate to evict: the one whose next use is furthest away. Candidates that are never used come
    // first. Among equals, the first one. `candidates` must not be empty.
    size_t furthest(std::span<const uint32_t> candidates, uint64_t position) const;

private:
    std::vector<uint32_t> first_;  // the uses of unit u are uses_[first_[u]] up to uses_[first_[u + 1]]
    std::vector<uint32_t> uses_;
    uint64_t length_;  // of the trace
};

}  // namespace stagehand::policy
