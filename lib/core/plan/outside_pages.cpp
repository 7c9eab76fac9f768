#include "core/plan/outside_pages.h"

#include <algorithm>

namespace stagehand::core {

// While the order is being learned, the units that may become part of it are still outside it. The engine holds them
// beside the others all the same. Those that were used before belong to other steps, which hold as many at once.
void OutsidePages::state(Registry& registry, const Order& order, const PlanLimits& limits) {
    total = kept = 0;
    policy::Outside outside, of_others;
    outside.max_held = of_others.max_held = limits.max_held;
    outside.asked_pages = limits.unordered_pages;
    const auto units = registry.units();
    for (uint32_t i = 0; i < units.size(); i++) {
        if (!units[i].live || order.contains(i)) continue;
        if (!units[i].is_member()) total += units[i].pages;  // members lie in the pool
        if (units[i].is_pool()) {
            outside.pool_pages += units[i].pages;
            outside.least_pool_pages += units[i].part.pool_pages;
        }
        if (units[i].protections) kept += units[i].own.size();
        if (units[i].part.set != kNone) continue;
        const bool may_join = !order.known() && !units[i].unordered;
        (may_join ? outside.to_learn : outside.to_stay).push_back({i, units[i].pages});
        if (order.known() && !units[i].unordered && units[i].last_use())
            of_others.to_learn.push_back({i, units[i].pages});
    }
    pools_more = outside.pool_pages - outside.least_pool_pages;
    needs = policy::needs_outside(outside);
    least = needs.pages();
    good = std::max({least, limits.unordered_held_pages, policy::needs_outside(of_others).pages()});
    good = std::min(total, good);
}

uint64_t OutsidePages::there(const PlanLimits& limits) const {
    return std::min(total, std::max({limits.keep_all ? limits.unordered_now : 0, kept, least}));
}

}  // namespace stagehand::core
