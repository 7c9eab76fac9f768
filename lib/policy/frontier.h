// Frontier: the candidates that a search keeps. These are the fastest one, and those that copy less in almost the same
// time.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/evaluator.h"

namespace stagehand::policy {

// Plans whose time is this close to the fastest count as equally fast. Among them, the plan that copies least is
// chosen.
inline constexpr double time_tolerance = 0.002;

struct Found {
    Candidate candidate;
    Cost cost;
};

class Frontier {
public:
    // Keeps the candidate, unless a kept one is as fast and copies as little.
    void offer(const Candidate& candidate, const Cost& cost);

    bool empty() const { return kept_.empty(); }
    const Found& fastest() const { return kept_.front(); }
    const Found& leanest() const { return kept_.back(); }
    double limit_ns() const { return fastest().cost.step_ns * (1 + time_tolerance); }

private:
    std::vector<Found> kept_;  // by growing time and falling bytes; none is slower than the limit
};

}  // namespace stagehand::policy
