// Mixes: the plan for steps of several kinds that alternate under one mapping.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "policy/plan.h"

namespace stagehand::policy {

// Some steps of one kind in a row.
struct Visit {
    uint32_t kind = 0;
    uint32_t steps = 1;
};

struct Mix {
    std::span<const std::vector<Use>> traces;  // one for each kind; none is empty
    std::span<const Visit> cycle;              // repeats for ever; each kind is visited, and no visit is empty
    // Orders that may come, too. They have no turn in the cycle, but a plan must be able to run them.
    std::span<const std::vector<Use>> others = {};
};

// One trace that stands for all orders, where one is needed: for the smallest budget, the curve and the places in the
// ring. It is the common order with the mean times, or the order of the kind with the most units and then the units
// that it lacks. If several uses are held and the orders differ, it is all orders one after the other, each twice, so
// that units that are held together in any of them are neighbours.
struct BaseTrace {
    std::vector<Use> trace;
    uint32_t steps = 0;  // that the trace stands for
};
BaseTrace base_trace(const Mix& mix, uint32_t max_held);

struct KindTimes {
    double step_ns = 0;   // mean of this kind's steps in the cycle
    double bound_ns = 0;  // simple_step_ns() of this kind. It holds for each step by itself.
    double alone_ns = 0;  // a step if the plan were made for this kind alone
};

struct MixedPlan {
    Plan plan;  // bytes and step are means over the cycle
    std::vector<KindTimes> kinds;
};

// The best plan found for the cycle as a whole. `problem` is that of the mix: its trace is the base trace. The plan is
// never slower for the cycle than the plans for the kinds alone, as far as these can run all kinds.
std::variant<MixedPlan, Infeasible> make_mixed_plan(const Problem& problem, const Mix& mix);

// The mean times of the steps of each kind, and of all steps, if a plan is in force. Nothing if the plan cannot run.
struct MixedTimes {
    double step_ns = 0;
    uint64_t bytes_per_step = 0;
    std::vector<double> kind_ns;
};
std::optional<MixedTimes> simulate_mix(const Problem& problem, const Mix& mix, const Plan& plan);

// No plan makes the mean step of the cycle shorter: the mean of the kinds' bounds. At the begin of a step, at most the
// memory's bytes are present, whatever the steps before copied ahead.
double mixed_bound_ns(const Problem& problem, const Mix& mix);

}  // namespace stagehand::policy
