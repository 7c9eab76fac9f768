#include "policy/step_rate.h"

#include <algorithm>
#include <limits>

namespace stagehand::policy {
namespace {

// The weight of the latest step in the smoothed time between steps.
constexpr double kLatest = 0.25;

}  // namespace

double StepRate::away_ns(uint64_t now_ns) const {
    return static_cast<double>(now_ns - std::min(now_ns, last_step_ns_));
}

void StepRate::note_step(uint64_t now_ns) {
    if (stepped_ && now_ns > last_step_ns_) {
        const double latest = away_ns(now_ns);
        period_ns_ = period_ns_ > 0 ? period_ns_ + kLatest * (latest - period_ns_) : latest;
    }
    stepped_ = true;
    last_step_ns_ = now_ns;
}

double StepRate::next_step_ns(uint64_t now_ns) const {
    if (!stepped_) return std::numeric_limits<double>::infinity();
    const double away = away_ns(now_ns);
    return away < period_ns_ ? period_ns_ - away : away;
}

double StepRate::per_second(uint64_t now_ns) const {
    return period_ns_ > 0 ? 1e9 / std::max(period_ns_, away_ns(now_ns)) : 0;
}

double StepRate::per_second(uint64_t now_ns, double busiest) const {
    if (period_ns_ > 0) return per_second(now_ns);
    const double away = away_ns(now_ns);
    return stepped_ && away > 0 ? std::min(busiest, 1e9 / away) : 0;
}

}  // namespace stagehand::policy
