// BudgetRefusal: the errors of a budget that is too small for a runtime. They name the smallest budget that works, and
// what asks for it.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "core/device/arbiter.h"
#include "core/plan/plan_terms.h"
#include "core/runtime/budget_share.h"
#include "core/runtime/step_order.h"
#include "policy/outside.h"

namespace stagehand::core {

class BudgetRefusal {
public:
    // `outside` is the part of the needs that is for units outside the order.
    BudgetRefusal(Gate& gate, BudgetShare& share, ModelMemory& memory, StepOrder& step_order, const PlanLimits& limits,
                  const policy::OutsideNeeds& outside)
        : gate_(gate), share_(share), memory_(memory), step_order_(step_order), limits_(limits), outside_(outside) {}

    // `asks` is the unit that needs most, or kNone. `reason` is what the arbiter said.
    Status of_plan(const Needs& needs, uint32_t asks, const Status& reason) const;
    // For a budget that was only tried out.
    Status of_trial(uint64_t asked_bytes, const Needs& needs, uint32_t asks) const;

private:
    std::string asked_for_by(uint32_t unit, uint64_t least_pages) const;
    uint64_t smallest_budget(uint64_t least_pages) const;

    Gate& gate_;
    BudgetShare& share_;
    ModelMemory& memory_;
    StepOrder& step_order_;
    const PlanLimits limits_;
    const policy::OutsideNeeds outside_;
};

}  // namespace stagehand::core
