#include "policy/time_drift.h"

#include <algorithm>
#include <utility>

namespace stagehand::policy {
namespace {

// Steps from one sample to the next, one more or less. That is by chance, so that each kind of step is seen of an
// engine whose kinds come in turn.
constexpr uint64_t kLeastInterval = 6, kMostInterval = 1024;
// Two timing events, and an acquire and a release on the long path. For each use of a sample.
constexpr double kSampleNs = 4000;
constexpr double kMostCost = 0.0015;  // of the steps
constexpr double kSumsApart = 0.1, kUsesApart = 0.3;

}  // namespace

bool differ(std::span<const uint64_t> one, std::span<const uint64_t> other) {
    if (one.size() != other.size()) return true;
    double sum = 0, other_sum = 0, apart = 0;
    for (size_t i = 0; i < one.size(); i++) {
        const double a = static_cast<double>(one[i]), b = static_cast<double>(other[i]);
        sum += a;
        other_sum += b;
        apart += a > b ? a - b : b - a;
    }
    const double most = std::max(sum, other_sum);
    return most - std::min(sum, other_sum) > kSumsApart * most || apart > kUsesApart * most;
}

bool TimeDrift::begin_step(uint64_t uses, double step_ns) {
    if (++steps_ < next_) return false;
    const double cost = static_cast<double>(uses) * kSampleNs;
    const double interval = step_ns > 0 ? cost / (step_ns * kMostCost) : kMostInterval;
    chance_ = chance_ * 1664525 + 1013904223;
    next_ = steps_ + static_cast<uint64_t>(std::clamp<double>(interval, kLeastInterval, kMostInterval)) - 1;
    next_ += (chance_ >> 16) % 3;
    return true;
}

bool TimeDrift::saw(std::span<const uint64_t> planned, std::vector<uint64_t> times) {
    changed_.clear();
    if (!differ(planned, times)) {
        before_.clear();
        return false;
    }
    if (before_.empty()) {
        next_ = steps_ + 1;
        before_ = std::move(times);
        return false;
    }
    if (differ(before_, times)) {
        before_.clear();
        return false;
    }
    changed_ = before_;
    for (size_t i = 0; i < times.size(); i++) changed_[i] = changed_[i] / 2 + times[i] / 2;
    before_ = std::move(times);
    return true;
}

void TimeDrift::begin_anew() {
    before_.clear();
    changed_.clear();
    next_ = steps_ + kLeastInterval;
}

}  // namespace stagehand::policy
