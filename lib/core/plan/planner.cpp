#include "core/plan/planner.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/size_text.h"
#include "core/plan/source_speeds.h"
#include "policy/bounds.h"
#include "policy/joint_trace.h"
#include "policy/plan_bound.h"
#include "policy/recurrence.h"
#include "policy/step_curve.h"

namespace stagehand::core {
namespace {

// If the engine sets no size, units outside the order get at most this part of the share beyond what they must have.
constexpr uint64_t kUnorderedPart = 8;
// Until compute times are known, computing is assumed to take as long as copying. The ring then has room for both to
// overlap.
constexpr double kAssumedComputePerCopy = 1.0;
constexpr uint32_t kSimulatedSteps = 64;  // of a plan that is in force

uint64_t compute_ns(const Sequence& sequence) { return sequence.begin_ns(sequence.size()); }

}  // namespace

// While the order is being learned, the units that may become part of it are still outside it. The engine holds them
// beside the others all the same. Those that were used before belong to other steps, which hold as many at once.
void Planner::state_unordered(const Order& order, const Limits& limits) {
    unordered_total_ = unordered_kept_ = 0;
    policy::Outside outside, of_others;
    outside.max_held = of_others.max_held = limits.max_held;
    outside.asked_pages = limits.unordered_pages;
    const auto units = registry_.units();
    for (uint32_t i = 0; i < units.size(); i++) {
        if (!units[i].live || order.contains(i)) continue;
        unordered_total_ += units[i].pages;
        if (units[i].protections) unordered_kept_ += units[i].own.size();
        const bool may_join = !order.known() && !units[i].unordered;
        (may_join ? outside.to_learn : outside.to_stay).push_back({i, units[i].pages});
        if (order.known() && !units[i].unordered && units[i].last_use())
            of_others.to_learn.push_back({i, units[i].pages});
    }
    unordered_needs_ = policy::needs_outside(outside);
    unordered_least_ = unordered_needs_.pages();
    unordered_good_ =
        std::max({unordered_least_, limits.unordered_held_pages, policy::needs_outside(of_others).pages()});
    unordered_good_ = std::min(unordered_total_, unordered_good_);
}

LinkSpeeds Planner::speeds_of(const Limits& limits) {
    const double beside = limits.link_bytes_per_ns > limits.link_bytes_beside ? limits.link_bytes_beside : 0;
    return {limits.link_bytes_per_ns, limits.link_bytes_per_ns - beside, limits.unpack_ns_per_byte,
            limits.unpack_batch_bytes};
}

// States the part of each unit that is left beside the floors. Packed units cost less than their bytes: for the policy,
// the link is as fast as for the unit that costs least, and the others are slower than that.
void Planner::state_units(const Limits& limits) {
    const auto units = registry_.units();
    find_source_ns_per_byte(units, &source_ns_);
    find_link_costs(registry_, speeds_of(limits), limits.kept_part, &link_costs_);
    least_cost_ = 1;
    for (uint32_t i = 0; i < units.size(); i++)
        if (units[i].live) least_cost_ = std::min(least_cost_, link_costs_[i].link);
    units_.resize(units.size());
    size_t moved = 0;  // gaps of units with floors; reserved first, because the units point at them
    for (uint32_t i = 0; i < floors_.size(); i++)
        if (floors_[i]) moved += registry_.gaps_of(i).size();
    gaps_.clear();
    gaps_.reserve(moved);
    for (uint32_t i = 0; i < units.size(); i++) {
        const uint64_t resident = i < floors_.size() ? floors_[i] * registry_.page_bytes() : 0;
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

std::vector<policy::Use> Planner::trace_of(const Sequence& sequence, const Limits& limits) const {
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
void Planner::state_problem(const Order& order, const Limits& limits) {
    state_units(limits);
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
    problem_.back_bytes_per_ns = speeds_of(limits).own_bytes_per_ns;
}

Needs Planner::needs(const Order& order, const Limits& limits, uint32_t* out_unit) {
    state_unordered(order, limits);
    floors_.clear();
    Needs needs;
    needs.least_pages = unordered_least_;
    needs.wanted_pages = unordered_total_;
    *out_unit = unordered_needs_.unit.value_or(kNone);
    if (!order.known()) return needs;
    state_problem(order, limits);
    const policy::Infeasible least = policy::smallest_budget(problem_);
    needs.least_pages += least.smallest_budget_pages;
    if (least.smallest_budget_pages >= unordered_least_) *out_unit = least.unit;  // the larger part of the sum
    const auto units = registry_.units();
    for (uint32_t i = 0; i < units.size(); i++)
        if (order.contains(i)) needs.wanted_pages += units[i].pages;
    return needs;
}

std::vector<policy::CurvePoint> Planner::curve(const Order& order, const Limits& limits, const Needs& needs) {
    if (!order.known()) return {};
    floors_.clear();
    state_problem(order, limits);
    // Units outside the order get only what they must have, because nobody knows what more memory is worth to them.
    auto points =
        policy::step_curve(problem_, needs.least_pages - unordered_least_, needs.wanted_pages - unordered_total_);
    for (policy::CurvePoint& point : points) {
        point.pages += unordered_least_;
        point.step_ns /= steps_;
    }
    return points;
}

uint64_t Planner::sum_of_floors() const { return std::accumulate(floors_.begin(), floors_.end(), uint64_t{0}); }

// States the problem beside the floors. Returns the pages that this problem and the floors need.
uint64_t Planner::state_beside_floors(const Order& order, const Limits& limits) {
    state_problem(order, limits);
    return sum_of_floors() + policy::smallest_budget(problem_).smallest_budget_pages;
}

// Sets the floors to the pages that protected units have.
void Planner::floor_what_is_there(const Order& order, const Limits& limits) {
    const auto units = registry_.units();
    floors_.assign(units.size(), 0);
    for (uint32_t i = 0; i < units.size(); i++)
        if (order.contains(i) && (limits.keep_all || units[i].protections))
            floors_[i] = static_cast<uint32_t>(units[i].own.size());
}

uint64_t Planner::pages_with_kept(const Order& order, const Limits& limits) {
    state_unordered(order, limits);
    const uint64_t unordered = std::min(
        unordered_total_, std::max({limits.keep_all ? limits.unordered_now : 0, unordered_kept_, unordered_least_}));
    if (!order.known()) return unordered;
    floor_what_is_there(order, limits);
    const uint64_t ordered = state_beside_floors(order, limits);
    floors_.clear();
    return ordered + unordered;
}

// Sets the pages that stay resident in any plan. They are the present pages of protected units, and further pages of
// units that are protected one by one, as long as there is room. `pages` are for the order, which cannot run with fewer
// than `least` of them beside the floors. Afterwards the problem is the one beside the floors.
void Planner::set_floors(const Order& order, const Limits& limits, uint64_t pages, uint64_t least) {
    const auto units = registry_.units();
    uint64_t room = 0;
    const auto raise = [&](uint32_t i, uint32_t to) {
        const uint64_t more = to - std::min(to, floors_[i]);
        const uint64_t given =
            units[i].whole || !registry_.maps_pages() ? (more <= room ? more : 0) : std::min(more, room);
        floors_[i] += static_cast<uint32_t>(given);
        room -= given;
    };
    floor_what_is_there(order, limits);
    uint64_t needed = state_beside_floors(order, limits);
    if (needed > pages) {
        // With more resident pages, fewer may have to be held at once. The present placement is known to run.
        for (uint32_t i = 0; i < units.size(); i++)
            if (order.contains(i)) floors_[i] = static_cast<uint32_t>(units[i].own.size());
        needed = state_beside_floors(order, limits);
        if (needed > pages) floor_what_is_there(order, limits);
    }
    if (needed > pages) {
        // Units that are used first come first. If not all fit, the end of the step is streamed.
        const std::vector<uint32_t> there = std::exchange(floors_, std::vector<uint32_t>(units.size()));
        room = pages > least ? pages - least : 0;
        for (const Order::Entry& entry : order.followed().entries()) raise(entry.unit, there[entry.unit]);
        needed = state_beside_floors(order, limits);
    }
    const std::vector<uint32_t> there = floors_;
    room = pages - std::min(pages, needed);
    for (const Order::Entry& entry : order.followed().entries())
        if (units[entry.unit].protections) raise(entry.unit, units[entry.unit].pages);
    // Fewer streamed units do not always mean that fewer pages must be held at once.
    if (state_beside_floors(order, limits) <= pages) return;
    floors_ = there;
    if (state_beside_floors(order, limits) <= pages) return;
    floors_.assign(units.size(), 0);
    state_problem(order, limits);
}

// The pages for units outside the order: what they must have, more if memory is plentiful, and all that the order
// leaves over.
uint64_t Planner::share_of_unordered(const Order& order, const Limits& limits, const Needs& needed,
                                     uint64_t share_pages, bool keeps) {
    const uint64_t ordered_wanted = needed.wanted_pages - unordered_total_;
    const uint64_t ordered_least = needed.least_pages - unordered_least_;
    const auto units = registry_.units();
    uint64_t ordered_kept = ordered_least;
    for (uint32_t i = 0; i < units.size(); i++)
        if (order.contains(i) && (limits.keep_all || units[i].protections)) ordered_kept += units[i].own.size();
    const uint64_t most = share_pages > ordered_least ? share_pages - ordered_least : 0;
    const uint64_t spare = share_pages > ordered_kept ? share_pages - ordered_kept : 0;
    uint64_t pages =
        std::min(most, std::max(unordered_good_, std::min(unordered_total_, share_pages / kUnorderedPart)));
    if (limits.unordered_pages) pages = std::min(most, unordered_least_);
    if (share_pages > ordered_wanted) pages = std::max(pages, std::min(unordered_total_, share_pages - ordered_wanted));
    // Protected pages come before additional pages, on either side.
    const uint64_t unordered_kept = std::min(
        unordered_total_,
        std::max(limits.keep_all ? limits.unordered_now : 0, unordered_kept_ ? unordered_kept_ + unordered_least_ : 0));
    pages = std::max(pages, std::min(most, unordered_kept));
    pages = std::min(pages, std::max({spare, unordered_kept, unordered_least_}));
    if (keeps) {
        // Present pages come before room for more, on either side.
        floor_what_is_there(order, limits);
        const uint64_t ordered_there = state_beside_floors(order, limits);
        const uint64_t left = share_pages > ordered_there ? share_pages - ordered_there : 0;
        const uint64_t there =
            std::max({limits.keep_all ? limits.unordered_now : 0, unordered_kept_, unordered_least_});
        pages = std::min(most, std::max(std::min(there, unordered_total_), std::min(pages, left)));
        floors_.clear();
        state_problem(order, limits);
    }
    return pages;
}

void Planner::state_bounds(const Order& order, Result* result) const {
    result->bound_bytes_per_step = policy::least_bytes(problem_) / steps_;
    result->bound_ns = policy::simple_step_ns(problem_) / steps_;
    result->plan_bound_ns = policy::least_plan_ns(problem_) / steps_;
    result->orders = 1 + order.others().size();
    result->compute_ns = compute_ns(order.followed());
    for (const Sequence& other : order.others()) result->compute_ns += compute_ns(other);
    result->compute_ns /= result->orders;
}

Status Planner::make_within(const Order& order, const Limits& limits, uint64_t share_pages, Result* out) {
    Result result;
    const Needs needed = needs(order, limits, &result.least_unit);
    result.least_pages = needed.least_pages;
    result.share_pages = share_pages;
    result.link_bytes_per_second = static_cast<uint64_t>(limits.link_bytes_per_ns * 1e9);
    result.places.resize(registry_.units().size());
    if (!order.known()) {
        result.unordered_pages = std::min(share_pages, unordered_total_);
        *out = std::move(result);
        return Status();
    }
    const auto units = registry_.units();
    const bool keeps = limits.keep_all ||
                       std::any_of(units.begin(), units.end(), [](const Unit& unit) { return unit.protections > 0; });
    result.unordered_pages = share_of_unordered(order, limits, needed, share_pages, keeps);
    // The bounds are those of the whole problem, because protection is a choice of the engine.
    problem_.budget_pages = share_pages - result.unordered_pages;
    state_bounds(order, &result);
    uint64_t floors = 0;
    if (keeps) {
        set_floors(order, limits, problem_.budget_pages, needed.least_pages - unordered_least_);
        floors = sum_of_floors();
        problem_.budget_pages = share_pages - result.unordered_pages - floors;
    }
    auto made = policy::make_plan(problem_);
    if (const auto* infeasible = std::get_if<policy::Infeasible>(&made)) {
        result.least_unit = infeasible->unit;
        return Status(SH_ERROR_BUDGET,
                      "no plan fits into " + exact_size_text(problem_.budget_pages * problem_.page_bytes) + ": " +
                          exact_size_text(infeasible->smallest_budget_pages * problem_.page_bytes) + " are needed");
    }
    const policy::Plan& plan = std::get<policy::Plan>(made);
    result.resident_pages = plan.resident_pages + floors;
    result.ring_pages = plan.ring_pages;
    result.bytes_per_step = plan.bytes_per_step / steps_;
    result.step_ns = plan.step_ns / steps_;
    for (uint32_t i = 0; i < units.size(); i++) {
        if (!order.contains(i)) continue;
        const policy::UnitPlan& unit = plan.units[i];
        const uint32_t floor = floors_.empty() ? 0 : floors_[i];
        result.places[i] = {floor + unit.resident_pages, unit.streamed_pages, unit.ring_offset};
        for (const Block& block : registry_.blocks_of(units[i]))
            if (block.id) (unit.streamed_pages ? result.streamed_blocks : result.resident_blocks)++;
    }
    *out = std::move(result);
    return Status();
}

double Planner::step_ns(const Order& order, const Limits& given, const Result& plan) {
    Limits limits = given;
    if (!plan.unpack.all_pages()) limits.unpack_ns_per_byte = 0;
    if (plan.unpack.kept_pages) limits.kept_part = plan.kept_part;
    floors_.clear();
    state_problem(order, limits);
    policy::Plan there;
    there.resident_pages = plan.resident_pages;
    there.ring_pages = plan.ring_pages;
    for (const Place& place : plan.places) there.units.push_back({place.own, place.ring_pages, place.ring_offset});
    there.units.resize(units_.size());
    problem_.budget_pages = plan.resident_pages + plan.ring_pages;
    const auto simulated = policy::simulate(problem_, there, kSimulatedSteps);
    return simulated ? simulated->step_ns / steps_ : 0;
}

}  // namespace stagehand::core
