// OutsidePages: the pages that units outside the order want.
#pragma once

#include <cstdint>

#include "core/memory/registry.h"
#include "core/plan/order.h"
#include "core/plan/plan_terms.h"
#include "policy/outside.h"

namespace stagehand::core {

struct OutsidePages {
    void state(Registry& registry, const Order& order, const PlanLimits& limits);
    // Those that stay if what is protected stays, and those without which a unit cannot be held.
    uint64_t there(const PlanLimits& limits) const;

    uint64_t total = 0;       // of all these units
    uint64_t least = 0;       // without which one of them cannot be held
    uint64_t good = 0;        // that they get when there is enough memory
    uint64_t kept = 0;        // present pages of protected units
    uint64_t pools_more = 0;  // of the pools of sets, beyond the least
    policy::OutsideNeeds needs;
};

}  // namespace stagehand::core
