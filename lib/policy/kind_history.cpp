#include "policy/kind_history.h"

#include <algorithm>
#include <bit>

namespace stagehand::policy {
namespace {

// A kind is stale if it has not come for so many times its longest gap, and for some steps more. A kind with one run
// has no gap, so its run counts.
constexpr uint64_t kGaps = 4, kRunLengths = 2, kMoreSteps = 64, kMoreAfterOneRun = 16;
constexpr uint64_t kMostVisits = 12;      // in a cycle
constexpr uint32_t kRunsToCompare = 3;    // with fewer runs, each kind comes once in a cycle
constexpr uint16_t kMostFollowed = 1000;  // counts are halved beyond

}  // namespace

void KindHistory::saw(uint32_t kind, uint64_t steps) noexcept {
    if (count_) {
        auto& row = followed_[runs_[count_ - 1].kind];
        if (++row[kind] > kMostFollowed)
            for (uint16_t& times : row) times = static_cast<uint16_t>(times / 2);
    }
    if (!count_ || runs_[count_ - 1].kind != kind) {
        if (count_ == kRuns) {
            std::copy(runs_.begin() + 1, runs_.end(), runs_.begin());
            count_--;
        }
        runs_[count_++] = {kind, 0, steps_, 0};
    }
    runs_[count_ - 1].steps += steps;
    runs_[count_ - 1].seen++;
    steps_ += steps;
}

void KindHistory::forget(uint32_t kind) noexcept {
    count_ = static_cast<size_t>(std::remove_if(runs_.begin(), runs_.begin() + static_cast<std::ptrdiff_t>(count_),
                                                [&](const Run& run) { return run.kind == kind; }) -
                                 runs_.begin());
    followed_[kind] = {};
    for (auto& row : followed_) row[kind] = 0;
}

uint32_t KindHistory::runs_of(uint32_t kind) const noexcept {
    uint32_t runs = 0;
    for (size_t i = 0; i < count_; i++) runs += runs_[i].kind == kind;
    return runs;
}

uint32_t KindHistory::seen() const noexcept {
    uint32_t seen = 0;
    for (size_t i = 0; i < count_; i++) seen += runs_[i].seen;
    return seen;
}

bool KindHistory::is_stale(uint32_t kind) const noexcept {
    const Run* last = nullptr;
    uint64_t gap = 0;
    for (size_t i = 0; i < count_; i++) {
        if (runs_[i].kind != kind) continue;
        if (last) gap = std::max(gap, runs_[i].began - (last->began + last->steps));
        last = &runs_[i];
    }
    if (!last) return true;
    const uint64_t since = steps_ - (last->began + last->steps);
    return since > (gap ? kGaps * gap + kMoreSteps : kRunLengths * last->steps + kMoreAfterOneRun);
}

uint32_t KindHistory::active() const noexcept {
    if (!count_) return 0;
    const uint32_t now = runs_[count_ - 1].kind;
    return runs_of(now) == 1 ? 1u << now : recent();
}

uint32_t KindHistory::recent() const noexcept {
    uint32_t recent = 0;
    for (size_t i = 0; i < count_; i++)
        if (i + 1 == count_ || !is_stale(runs_[i].kind)) recent |= 1u << runs_[i].kind;
    return recent;
}

uint64_t KindHistory::stable_for() const noexcept {
    const uint32_t kinds = active();
    size_t first = count_;
    while (first && kinds & 1u << runs_[first - 1].kind) first--;
    return first < count_ ? steps_ - runs_[first].began : 0;
}

uint32_t KindHistory::expected() const noexcept {
    if (!count_) return kMostKinds;
    const auto& row = followed_[runs_[count_ - 1].kind];
    const auto most = std::max_element(row.begin(), row.end());
    return *most ? static_cast<uint32_t>(most - row.begin()) : runs_[count_ - 1].kind;
}

std::vector<Visit> KindHistory::cycle(bool sampled) const {
    struct Sum {
        uint64_t runs = 0, steps = 0, visits = 1;
    };
    std::array<Sum, kMostKinds> sums = {};
    const uint32_t kinds = active();
    const bool one = std::popcount(kinds) == 1;
    // The present run is not over, and so its length does not count unless the kind has no other run.
    for (size_t i = 0; i < count_; i++) {
        const uint32_t kind = runs_[i].kind;
        if (!(kinds & 1u << kind) || (i + 1 == count_ && sums[kind].runs && !sampled)) continue;
        sums[kind].runs++;
        sums[kind].steps += runs_[i].steps;
    }
    uint64_t least_runs = UINT64_MAX, least_steps = UINT64_MAX, most_visits = 1;
    for (uint32_t kind = 0; kind < kMostKinds; kind++) {
        if (!sums[kind].runs) continue;
        least_runs = std::min(least_runs, sums[kind].runs);
        least_steps = std::min(least_steps, std::max<uint64_t>(1, sums[kind].steps));
    }
    const bool compares = std::popcount(kinds) > 2 && least_runs >= kRunsToCompare && !sampled;
    for (Sum& sum : sums) {
        if (!compares || !sum.runs) continue;
        sum.visits =
            std::clamp<uint64_t>((sum.runs + least_runs / 2) / least_runs, 1,
                                 std::max<uint64_t>(1, kMostVisits / static_cast<uint64_t>(std::popcount(kinds))));
        most_visits = std::max(most_visits, sum.visits);
    }
    std::vector<Visit> cycle;
    for (uint64_t round = 0; round < most_visits; round++)
        for (uint32_t kind = 0; kind < kMostKinds; kind++) {
            const Sum& sum = sums[kind];
            if (!sum.runs || (round + 1) * sum.visits / most_visits == round * sum.visits / most_visits) continue;
            // Of all its steps in the history, as many as belong to this visit.
            const uint64_t rest = sampled ? least_steps : compares ? least_runs * sum.visits : sum.runs;
            const uint64_t steps = one ? 1 : std::clamp<uint64_t>((sum.steps + rest / 2) / rest, 1, UINT32_MAX);
            cycle.push_back({kind, static_cast<uint32_t>(steps)});
        }
    return cycle;
}

}  // namespace stagehand::policy
