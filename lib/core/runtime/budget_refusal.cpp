#include "core/runtime/budget_refusal.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/size_text.h"

namespace stagehand::core {

// Names what determines the smallest budget: a block, or all bytes that the engine asked for outside the order. Also
// tells how much must fit beside it.
std::string BudgetRefusal::asked_for_by(uint32_t unit, uint64_t least_pages) const {
    if (unit == kNone) return "";
    const Unit& largest = memory_.registry.unit(unit);
    const bool learning = !step_order_.order.known();
    const bool stays = !step_order_.order.contains(unit) && outside_.to_stay_pages > outside_.to_learn_pages;
    const uint64_t beside = stays ? least_pages - outside_.to_stay_pages : outside_.to_stay_pages;
    std::string text = ", asked for by ";
    if (stays && limits_.unordered_pages > largest.pages)
        text += "its unordered_bytes, " + exact_size_text(limits_.unordered_pages * share_.page_bytes()) +
                " in whole pages";
    else
        text += memory_.registry.name_of(largest) + " of " + exact_size_text(largest.bytes);
    if (!stays && learning && limits_.max_held > 1)
        text += " and the next largest ones: max_held, " + std::to_string(limits_.max_held) +
                ", must fit at once until the order is known";
    if (beside)
        text += ", beside " + exact_size_text(beside * share_.page_bytes()) +
                (stays ? " for blocks of the order" : " for blocks outside the order");
    return text;
}

// The smallest budget for a new runtime with the same blocks. With that budget, small blocks may be grouped in larger
// units than now.
uint64_t BudgetRefusal::smallest_budget(uint64_t least_pages) const {
    const uint64_t now = Registry::group_pages(share_.most_pages());
    if (Registry::group_pages(least_pages) <= now || !memory_.registry.has_small_blocks()) return least_pages;
    std::vector<uint64_t> sizes;
    for (const Unit& unit : memory_.registry.units())
        if (unit.live && !unit.unordered) sizes.push_back(unit.pages);
    std::ranges::sort(sizes, std::greater());
    sizes.resize(std::min<size_t>(sizes.size(), limits_.max_held));
    uint64_t smallest = least_pages, before = 0;
    while (smallest != before) {
        const uint64_t grouped = Registry::group_pages(before = smallest);
        smallest = least_pages;
        for (const uint64_t pages : sizes) smallest += grouped - std::min(grouped, pages);
    }
    return smallest;
}

Status BudgetRefusal::of_plan(const Needs& needs, uint32_t asks, const Status& reason) const {
    const uint64_t page = share_.page_bytes();
    const std::string smallest = " is too small: the smallest that works is " +
                                 exact_size_text(smallest_budget(needs.least_pages) * page) +
                                 asked_for_by(asks, needs.least_pages);
    if (needs.least_pages > share_.max_pages)
        return Status(SH_ERROR_BUDGET, gate_.title() + ": its max_bytes, " + exact_size_text(share_.max_pages * page) +
                                           " in whole pages," + smallest);
    const char* const of = needs.least_pages > share_.arbiter().total_pages() ? "" : " that is left to it";
    return Status(SH_ERROR_BUDGET, gate_.title() + ": the budget" + of + smallest + " (" + reason.text() + ")");
}

Status BudgetRefusal::of_trial(uint64_t asked_bytes, const Needs& needs, uint32_t asks) const {
    return Status(SH_ERROR_BUDGET, gate_.title() + ": a budget of " + exact_size_text(asked_bytes) +
                                       " is too small: the smallest that works is " +
                                       exact_size_text(needs.least_pages * share_.page_bytes()) +
                                       asked_for_by(asks, needs.least_pages));
}

}  // namespace stagehand::core
