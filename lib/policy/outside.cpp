#include "policy/outside.h"

#include <algorithm>
#include <functional>
#include <span>

namespace stagehand::policy {
namespace {

uint64_t sum_of(std::span<const Outside::Unit> units) {
    uint64_t sum = 0;
    for (const Outside::Unit& unit : units) sum += unit.pages;
    return sum;
}

std::optional<uint32_t> largest(std::span<const Outside::Unit> units) {
    const auto found = std::ranges::max_element(units, {}, &Outside::Unit::pages);
    return found == units.end() ? std::nullopt : std::optional(found->index);
}

uint64_t sum_of_largest(std::span<const Outside::Unit> units, uint64_t count) {
    std::vector<Outside::Unit> sorted(units.begin(), units.end());
    const size_t taken = std::min<uint64_t>(count, sorted.size());
    std::ranges::partial_sort(sorted, sorted.begin() + static_cast<ptrdiff_t>(taken), std::greater(),
                              &Outside::Unit::pages);
    return sum_of(std::span(sorted).first(taken));
}

}  // namespace

OutsideNeeds needs_outside(const Outside& outside) {
    OutsideNeeds needs;
    const uint64_t staying = sum_of(outside.to_stay) + outside.pool_pages;
    const uint64_t least = sum_of_largest(outside.to_stay, 1) + outside.least_pool_pages;
    needs.to_learn_pages = sum_of_largest(outside.to_learn, outside.max_held);
    needs.to_stay_pages = std::min(staying, std::max(least, outside.asked_pages));
    // The engine may know that units stay outside, and may not have told so.
    const uint64_t asked = std::min(staying + sum_of(outside.to_learn), outside.asked_pages);
    if (needs.pages() < asked) needs.to_stay_pages = asked - needs.to_learn_pages;
    needs.unit = largest(needs.to_learn_pages >= needs.to_stay_pages ? outside.to_learn : outside.to_stay);
    if (!needs.unit) needs.unit = largest(outside.to_learn);
    return needs;
}

}  // namespace stagehand::policy
