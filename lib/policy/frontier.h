// The candidates worth keeping during a search: the fastest, and those that copy less at almost the same
// time.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/evaluator.h"

namespace stagehand::policy {

// Plans this close to the fastest count as equally fast; of those the one that copies least is chosen.
inline constexpr double time_tolerance = 0.002;

struct Found {
    Candidate candidate;
    Cost cost;
};

class Frontier {
public:
    // Keeps it unless something kept is as fast and copies as little.
    void offer(const Candidate& candidate, const Cost& cost);

    bool empty() const { return kept_.empty(); }
    const Found& fastest() const { return kept_.front(); }
    const Found& leanest() const { return kept_.back(); }
    double limit_ns() const { return fastest().cost.step_ns * (1 + time_tolerance); }

private:
    std::vector<Found> kept_;  // by growing time and falling bytes, none slower than the limit
};

}  // namespace stagehand::policy
