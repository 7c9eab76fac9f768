// When each unit is used next, from a recorded trace that repeats: what is used furthest in the future is
// given up first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/plan.h"

namespace stagehand::policy {

class NextUse {
public:
    static constexpr uint64_t never = UINT64_MAX;

    // units: how many there are; uses of others are ignored.
    NextUse(std::span<const Use> trace, uint32_t units);

    // How many uses after the one at `position` (any number; the trace is a cycle) the unit's next use comes:
    // 1 for the very next, the trace's length if `position` itself is its only use. O(log uses).
    uint64_t uses_until(uint32_t unit, uint64_t position) const;

    // The compute time between the end of the use at `position` and the start of the unit's next use.
    uint64_t ns_until(uint32_t unit, uint64_t position) const;

    // Index of the candidate to give up: the one whose next use takes longest to come, those never used
    // first; among equals the first. Candidates may not be empty.
    size_t furthest(std::span<const uint32_t> candidates, uint64_t position) const;

private:
    std::vector<uint32_t> first_;  // the uses of unit u are uses_[first_[u]] up to uses_[first_[u + 1]]
    std::vector<uint32_t> uses_;
    std::vector<uint64_t> started_ns_;  // when each use starts, computes alone; one more for the end
};

}  // namespace stagehand::policy
