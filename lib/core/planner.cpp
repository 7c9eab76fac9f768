#include "core/planner.h"

#include <algorithm>

#include "policy/bounds.h"

namespace stagehand::core {
namespace {

// Without being told, units outside the order get at most this part of the share beyond what they must have.
constexpr uint64_t kUnorderedPart = 8;
// Until compute times are known, computing is taken to last as long as copying: the ring then has room for both to overlap.
constexpr double kAssumedComputePerCopy = 1.0;

}  // namespace

void Planner::state_unordered(const Order& order, const Limits& limits) {
    unordered_total_ = unordered_least_ = 0;
    unordered_largest_ = kNone;
    const auto units = registry_.units();
    for (uint32_t i = 0; i < units.size(); i++) {
        if (!units[i].live || order.contains(i)) continue;
        unordered_total_ += units[i].pages;
        if (units[i].pages > unordered_least_) {
            unordered_least_ = units[i].pages;
            unordered_largest_ = i;
        }
    }
    // While the order is being learned, all that the engine holds at once must fit.
    if (!order.known()) unordered_least_ = std::min(unordered_total_, unordered_least_ * limits.max_held);
    unordered_least_ = std::min(unordered_total_, std::max(unordered_least_, limits.unordered_pages));
    unordered_good_ = std::min(unordered_total_, std::max(unordered_least_, limits.unordered_held_pages));
}

void Planner::state_problem(const Order& order, const Limits& limits) {
    const auto units = registry_.units();
    units_.resize(units.size());
    for (size_t i = 0; i < units.size(); i++) units_[i] = {units[i].live ? units[i].bytes : 0, units[i].whole};
    trace_.clear();
    uint64_t bytes = 0;
    for (const Order::Entry& entry : order.entries()) {
        trace_.push_back({entry.unit, entry.compute_ns});
        bytes += units[entry.unit].bytes;
    }
    const bool unknown = std::all_of(trace_.begin(), trace_.end(), [](const policy::Use& use) { return use.compute_ns == 0; });
    if (unknown)
        for (policy::Use& use : trace_)
            use.compute_ns = static_cast<uint64_t>(kAssumedComputePerCopy * static_cast<double>(units[use.unit].bytes) / limits.link_bytes_per_ns);
    problem_ = {};
    problem_.units = units_;
    problem_.trace = trace_;
    problem_.page_bytes = registry_.page_bytes();
    problem_.max_held = limits.max_held;
    problem_.link_bytes_per_ns = limits.link_bytes_per_ns;
    problem_.copy_latency_ns = limits.copy_latency_ns;
    problem_.contiguous = registry_.plain();
}

Arbiter::Needs Planner::needs(const Order& order, const Limits& limits, uint32_t* out_unit) {
    state_unordered(order, limits);
    Arbiter::Needs needs;
    needs.weight = registry_.model_bytes();
    needs.least_pages = unordered_least_;
    needs.wanted_pages = unordered_total_;
    *out_unit = unordered_largest_;
    if (!order.known()) return needs;
    state_problem(order, limits);
    const policy::Infeasible least = policy::smallest_budget(problem_);
    needs.least_pages += least.smallest_budget_pages;
    if (least.smallest_budget_pages >= unordered_least_) *out_unit = least.unit;   // the larger part of the sum
    const auto units = registry_.units();
    for (uint32_t i = 0; i < units.size(); i++)
        if (order.contains(i)) needs.wanted_pages += units[i].pages;
    return needs;
}

Status Planner::make(const Order& order, const Limits& limits, uint64_t share_pages, Result* out) {
    Result result;
    const Arbiter::Needs needed = needs(order, limits, &result.least_unit);
    result.least_pages = needed.least_pages;
    result.share_pages = share_pages;
    result.link_bytes_per_second = static_cast<uint64_t>(limits.link_bytes_per_ns * 1e9);
    result.places.resize(registry_.units().size());
    if (!order.known()) {
        result.unordered_pages = std::min(share_pages, unordered_total_);
        *out = std::move(result);
        return Status();
    }
    // Units outside the order: what they must have, more where there is plenty, all that the order leaves over.
    const uint64_t ordered_wanted = needed.wanted_pages - unordered_total_;
    const uint64_t ordered_least = needed.least_pages - unordered_least_;
    const uint64_t most = share_pages > ordered_least ? share_pages - ordered_least : 0;
    result.unordered_pages = std::min(most, std::max(unordered_good_, std::min(unordered_total_, share_pages / kUnorderedPart)));
    if (limits.unordered_pages) result.unordered_pages = std::min(most, unordered_least_);
    if (share_pages > ordered_wanted)
        result.unordered_pages = std::max(result.unordered_pages, std::min(unordered_total_, share_pages - ordered_wanted));

    problem_.budget_pages = share_pages - result.unordered_pages;
    auto made = policy::make_plan(problem_);
    if (const auto* infeasible = std::get_if<policy::Infeasible>(&made)) {
        result.least_unit = infeasible->unit;
        return Status(SH_ERROR_BUDGET, "no plan for " + std::to_string(problem_.budget_pages) + " pages: " +
                                           std::to_string(infeasible->smallest_budget_pages) + " are needed");
    }
    const policy::Plan& plan = std::get<policy::Plan>(made);
    result.resident_pages = plan.resident_pages;
    result.ring_pages = plan.ring_pages;
    result.bytes_per_step = plan.bytes_per_step;
    result.step_ns = plan.step_ns;
    result.bound_bytes_per_step = policy::least_bytes(problem_);
    result.bound_ns = policy::simple_step_ns(problem_);
    for (const Order::Entry& entry : order.entries()) result.compute_ns += entry.compute_ns;
    const auto units = registry_.units();
    for (uint32_t i = 0; i < units.size(); i++) {
        if (!order.contains(i)) continue;
        const policy::UnitPlan& unit = plan.units[i];
        result.places[i] = {unit.resident_pages, unit.streamed_pages, unit.ring_offset};
        for (const Block& block : registry_.blocks_of(units[i]))
            if (block.id) (unit.streamed_pages ? result.streamed_blocks : result.resident_blocks)++;
    }
    *out = std::move(result);
    return Status();
}

}  // namespace stagehand::core
