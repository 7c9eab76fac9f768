// Planner: states a runtime's blocks, order and share as a problem of the policy, and turns the answer into places.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "core/device/arbiter.h"
#include "core/memory/registry.h"
#include "core/plan/order.h"
#include "core/plan/outside_pages.h"
#include "core/plan/plan_problem.h"
#include "core/plan/plan_terms.h"
#include "policy/outside.h"
#include "policy/plan.h"

namespace stagehand::core {

class Planner {
public:
    explicit Planner(Registry& registry) : registry_(registry), problem_(registry) {}

    // What the runtime needs of the device, without the curve, and the unit that determines the smallest share.
    Needs needs(const Order& order, const PlanLimits& limits, uint32_t* out_unit);
    // How much shorter the step gets with more memory, for the result of needs(). Empty if the order is not known.
    std::vector<policy::CurvePoint> curve(const Order& order, const PlanLimits& limits, const Needs& needs);
    // Makes the plan for a share that is no smaller than the least, without memory to unpack in. All units are
    // unordered if the order is not known.
    Status make(const Order& order, const PlanLimits& limits, uint64_t share_pages, PlanResult* out);

    // The mean length of a step of each order if a plan is in force. 0 if the plan cannot run it.
    double step_ns(const Order& order, const PlanLimits& limits, const PlanResult& plan);

    // The part of the last needs() that is for units outside the order.
    const policy::OutsideNeeds& outside() const { return outside_.needs; }

    // The pages that a plan needs that keeps what is protected.
    uint64_t pages_with_kept(const Order& order, const PlanLimits& limits);

private:
    uint64_t share_of_unordered(const Order& order, const PlanLimits& limits, const Needs& needed, uint64_t share_pages,
                                bool keeps);
    uint64_t sum_of_floors() const;
    uint64_t state_beside_floors(const Order& order, const PlanLimits& limits);
    void floor_what_is_there(const Order& order, const PlanLimits& limits);
    void set_floors(const Order& order, const PlanLimits& limits, uint64_t pages, uint64_t least);

    Registry& registry_;
    PlanProblem problem_;
    OutsidePages outside_;
    std::vector<uint32_t> floors_;  // for each unit, pages that are resident in any plan
};

}  // namespace stagehand::core
