#include "policy/kind_history.h"

#include <algorithm>

namespace stagehand::policy {
namespace {

// A kind is stale if it has not come for so many times its longest gap, and for some steps more. A kind with one run
// has no gap, so its run counts.
constexpr uint64_t kGaps = 4, kRunLengths = 2, kMoreSteps = 64, kMoreAfterOneRun = 16;
constexpr uint16_t kMostFollowed = 1000;  // counts are halved beyond

}  // namespace

void KindHistory::saw(uint32_t kind) noexcept {
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
        runs_[count_++] = {kind, steps_, 0};
    }
    runs_[count_ - 1].steps++;
    steps_++;
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

double KindHistory::steps_of(uint32_t kind) const noexcept {
    const uint32_t runs = runs_of(kind);
    double steps = 0;
    uint32_t over = 0;
    for (size_t i = 0; i < count_; i++) {
        if (runs_[i].kind != kind || (runs > 1 && i + 1 == count_)) continue;
        steps += static_cast<double>(runs_[i].steps);
        over++;
    }
    return over ? steps * runs / over : 0;
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

}  // namespace stagehand::policy
