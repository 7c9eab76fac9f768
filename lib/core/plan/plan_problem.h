// PlanProblem: states a runtime's blocks and order as a problem of the policy.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/memory/registry.h"
#include "core/plan/link_costs.h"
#include "core/plan/order.h"
#include "core/plan/plan_terms.h"
#include "policy/plan.h"

namespace stagehand::core {

class PlanProblem {
public:
    explicit PlanProblem(Registry& registry) : registry_(registry) {}

    // `floors`: for each unit, or for none, pages that are resident in any plan. The problem is the one beside them.
    void state(const Order& order, const PlanLimits& limits, std::span<const uint32_t> floors);
    policy::Problem& get() { return problem_; }
    uint32_t steps() const { return steps_; }  // that the trace stands for
    // The bounds of a step of the problem with its budget.
    void find_bounds(const Order& order, PlanResult* result) const;

private:
    void state_units(const PlanLimits& limits, std::span<const uint32_t> floors);
    std::vector<policy::Use> trace_of(const Sequence& sequence, const PlanLimits& limits) const;

    Registry& registry_;
    std::vector<policy::Unit> units_;   // the policy's units, kept from plan to plan
    std::vector<double> source_ns_;     // that the source of each unit takes for a byte
    std::vector<LinkCost> link_costs_;  // of each unit
    double least_cost_ = 1;             // of them
    std::vector<policy::Gap> gaps_;     // of units_, if pages stay resident beside the plan
    std::vector<policy::Use> trace_;
    policy::Problem problem_;
    uint32_t steps_ = 1;
};

}  // namespace stagehand::core
