#include "policy/frontier.h"

#include <algorithm>

namespace stagehand::policy {

void Frontier::offer(const Candidate& candidate, const Cost& cost) {
    // Differences due to rounding do not count.
    constexpr double rounding = 1e-9;
    if (!kept_.empty() && cost.step_ns > limit_ns()) return;
    for (const Found& found : kept_)
        if (found.cost.step_ns <= cost.step_ns * (1 + rounding) && found.cost.bytes <= cost.bytes) return;
    std::erase_if(kept_, [&](const Found& found) {
        return cost.step_ns <= found.cost.step_ns * (1 + rounding) && cost.bytes <= found.cost.bytes;
    });
    auto place =
        std::find_if(kept_.begin(), kept_.end(), [&](const Found& found) { return found.cost.step_ns > cost.step_ns; });
    kept_.insert(place, {candidate, cost});
    const double limit = limit_ns();
    std::erase_if(kept_, [&](const Found& found) { return found.cost.step_ns > limit; });
}

}  // namespace stagehand::policy
