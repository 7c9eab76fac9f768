#include "core/plan/plan_problem.h"

#include <algorithm>
#include <utility>

#include "core/plan/source_speeds.h"
#include "policy/bounds.h"
#include "policy/joint_trace.h"
#include "policy/plan_bound.h"
#include "policy/recurrence.h"

namespace stagehand::core {
namespace {

// Until compute times are known, computing is assumed to take as long as copying. The ring then has room for both to
// overlap.
constexpr double kAssumedComputePerCopy = 1.0;

uint64_t compute_ns(const Sequence& sequence) { return sequence.begin_ns(sequence.size()); }

}  // namespace

// States the part of each unit that is left beside the floors. Packed units cost less than their bytes: for the policy,
// the link is as fast as for the unit that costs least, and the others are slower than that.
void PlanProblem::state_units(const PlanLimits& limits, std::span<const uint32_t> floors) {
    const auto units = registry_.units();
    find_source_ns_per_byte(units, &source_ns_);
    find_link_costs(registry_, limits.speeds(), limits.kept_part, &link_costs_);
    least_cost_ = 1;
    for (uint32_t i = 0; i < units.size(); i++)
        if (units[i].live) least_cost_ = std::min(least_cost_, link_costs_[i].link);
    units_.resize(units.size());
    size_t moved = 0;  // gaps of units with floors; reserved first, because the units point at them
    for (uint32_t i = 0; i < floors.size(); i++)
        if (floors[i]) moved += registry_.gaps_of(i).size();
    gaps_.clear();
    gaps_.reserve(moved);
    for (uint32_t i = 0; i < units.size(); i++) {
        const uint64_t resident = i < floors.size() ? floors[i] * registry_.page_bytes() : 0;
        units_[i] = {};
        if (!units[i].live || units[i].bytes <= resident) continue;
        const double by_source = link_costs_[i].by_workers * source_ns_[i] * limits.link_bytes_per_ns;
        const double slowdown = std::max(link_costs_[i].link, by_source) / least_cost_;
        units_[i] = {units[i].bytes - resident, units[i].whole, registry_.gaps_of(i), slowdown,
                     i < limits.changing.size() && limits.changing[i]};
        if (!resident) continue;
        const size_t first = gaps_.size();
        uint64_t before = 0;
        for (const policy::Gap& gap : registry_.gaps_of(i)) {
            const uint64_t end = gap.offset + gap.bytes, begin = std::max(gap.offset, resident);
            if (end <= begin) continue;
            gaps_.push_back({begin - resident, end - begin, before});
            before += end - begin;
        }
        units_[i].gaps = {gaps_.data() + first, gaps_.size() - first};
    }
}

std::vector<policy::Use> PlanProblem::trace_of(const Sequence& sequence, const PlanLimits& limits) const {
    std::vector<policy::Use> trace;
    for (const Order::Entry& entry : sequence.entries()) trace.push_back({entry.unit, entry.compute_ns});
    if (compute_ns(sequence)) return trace;
    const double link = limits.link_bytes_per_ns / least_cost_;
    for (policy::Use& use : trace)
        use.compute_ns =
            static_cast<uint64_t>(kAssumedComputePerCopy * static_cast<double>(registry_.link_bytes(use.unit)) / link);
    return trace;
}

// One trace that stands for all orders.
void PlanProblem::state(const Order& order, const PlanLimits& limits, std::span<const uint32_t> floors) {
    state_units(limits, floors);
    std::vector<std::vector<policy::Use>> traces = {trace_of(order.followed(), limits)};
    for (const Sequence& other : order.others()) traces.push_back(trace_of(other, limits));
    policy::JointTrace joint = policy::join_orders(traces, limits.max_held);
    trace_ = std::move(joint.trace);
    steps_ = joint.steps;
    problem_ = {};
    problem_.units = units_;
    problem_.trace = trace_;
    problem_.page_bytes = registry_.page_bytes();
    problem_.max_held = limits.max_held;
    problem_.link_bytes_per_ns = limits.link_bytes_per_ns / least_cost_;
    problem_.copy_latency_ns = limits.copy_latency_ns;
    problem_.contiguous = !registry_.maps_pages();
    problem_.back_bytes_per_ns = limits.speeds().own_bytes_per_ns;
}

void PlanProblem::find_bounds(const Order& order, PlanResult* result) const {
    result->bound_bytes_per_step = policy::least_bytes(problem_) / steps_;
    result->bound_ns = policy::simple_step_ns(problem_) / steps_;
    result->plan_bound_ns = policy::least_plan_ns(problem_) / steps_;
    result->orders = 1 + order.others().size();
    result->compute_ns = compute_ns(order.followed());
    for (const Sequence& other : order.others()) result->compute_ns += compute_ns(other);
    result->compute_ns /= result->orders;
}

}  // namespace stagehand::core
