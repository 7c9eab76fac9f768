#include "policy/next_use.h"

#include <algorithm>

namespace stagehand::policy {

NextUse::NextUse(std::span<const Use> trace, uint32_t units) : first_(size_t{units} + 1), length_(trace.size()) {
    for (const Use& use : trace)
        if (use.unit < units) first_[use.unit + 1]++;
    for (uint32_t u = 0; u < units; u++) first_[u + 1] += first_[u];
    uses_.resize(first_[units]);
    std::vector<uint32_t> next(first_.begin(), first_.end() - 1);
    for (uint32_t j = 0; j < trace.size(); j++)
        if (trace[j].unit < units) uses_[next[trace[j].unit]++] = j;
}

uint64_t NextUse::uses_until(uint32_t unit, uint64_t position) const {
    if (size_t{unit} + 1 >= first_.size() || first_[unit] == first_[unit + 1]) return never;
    position %= length_;
    auto begin = uses_.begin() + first_[unit];
    auto end = uses_.begin() + first_[unit + 1];
    auto next = std::upper_bound(begin, end, position);
    return next != end ? *next - position : *begin + length_ - position;
}

size_t NextUse::furthest(std::span<const uint32_t> candidates, uint64_t position) const {
    size_t best = 0;
    uint64_t latest = 0;
    for (size_t k = 0; k < candidates.size(); k++) {
        uint64_t ahead = uses_until(candidates[k], position);
        if (k == 0 || ahead > latest) {
            best = k;
            latest = ahead;
        }
    }
    return best;
}

}  // namespace stagehand::policy
