#include "policy/watermarks.h"

#include "base/saturating.h"

namespace stagehand::policy {

Excess Watermarks::look(const MemoryInUse& now) {
    // What is leaving counts as gone: otherwise every look would send more after it.
    const uint64_t remaining = above(now.used, now.leaving);
    if (remaining > limits_.high_bytes) spilling_ = true;
    if (remaining <= limits_.low_bytes) spilling_ = false;
    Excess excess;
    excess.must = std::max(above(remaining, limits_.high_bytes), above(now.kept, limits_.keep_bytes));
    excess.may = std::max(excess.must, spilling_ ? above(remaining, limits_.low_bytes) : 0);
    return excess;
}

uint64_t Watermarks::may_be_leaving(const MemoryInUse& now, uint64_t bound) const {
    if (!limits_.are_there()) return bound;
    uint64_t most = UINT64_MAX;
    if (limits_.bounds_kept()) most = above(saturating_sum(limits_.keep_bytes, bound), now.kept);
    const uint64_t too_much = limits_.watches_use() ? above(now.used, limits_.high_bytes) : 0;
    if (too_much) most = std::min(most, above(now.leaving, too_much));
    return std::max(bound, most);
}

uint64_t Watermarks::may_be_ahead(const MemoryInUse& now, uint64_t bound) const {
    if (!limits_.are_there()) return bound;
    const uint64_t before = saturating_sum(now.kept, now.leaving);
    const uint64_t soon = above(bound, before);
    if (!now.used) return soon;
    uint64_t most = saturating_sum(now.ahead, above(limits_.watches_use() ? limits_.high_bytes : now.peak, now.used));
    if (limits_.bounds_kept()) most = std::min(most, above(limits_.keep_bytes, before));
    return std::max(soon, most);
}

}  // namespace stagehand::policy
