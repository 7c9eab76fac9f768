#include "core/plan/planner.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <variant>

#include "base/size_text.h"
#include "policy/bounds.h"
#include "policy/recurrence.h"
#include "policy/step_curve.h"

namespace stagehand::core {
namespace {

// If the engine sets no size, units outside the order get at most this part of the share beyond what they must have.
// Members of sets get none of it: a step uses a page of the order once, and a member less often.
constexpr uint64_t kUnorderedPart = 8;
constexpr uint32_t kSimulatedSteps = 64;  // of a plan that is in force

}  // namespace

Needs Planner::needs(const Order& order, const PlanLimits& limits, uint32_t* out_unit) {
    outside_.state(registry_, order, limits);
    floors_.clear();
    Needs needs;
    needs.least_pages = outside_.least;
    needs.wanted_pages = outside_.total;
    *out_unit = outside_.needs.unit.value_or(kNone);
    if (!order.known()) return needs;
    problem_.state(order, limits, floors_);
    const policy::Infeasible least = policy::smallest_budget(problem_.get());
    needs.least_pages += least.smallest_budget_pages;
    if (least.smallest_budget_pages >= outside_.least) *out_unit = least.unit;  // the larger part of the sum
    const auto units = registry_.units();
    for (uint32_t i = 0; i < units.size(); i++)
        if (order.contains(i)) needs.wanted_pages += units[i].pages;
    return needs;
}

std::vector<policy::CurvePoint> Planner::curve(const Order& order, const PlanLimits& limits, const Needs& needs) {
    if (!order.known()) return {};
    floors_.clear();
    problem_.state(order, limits, floors_);
    // Units outside the order get only what they must have, because nobody knows what more memory is worth to them.
    auto points =
        policy::step_curve(problem_.get(), needs.least_pages - outside_.least, needs.wanted_pages - outside_.total);
    for (policy::CurvePoint& point : points) {
        point.pages += outside_.least;
        point.step_ns /= problem_.steps();
    }
    return points;
}

uint64_t Planner::sum_of_floors() const { return std::accumulate(floors_.begin(), floors_.end(), uint64_t{0}); }

// States the problem beside the floors. Returns the pages that this problem and the floors need.
uint64_t Planner::state_beside_floors(const Order& order, const PlanLimits& limits) {
    problem_.state(order, limits, floors_);
    return sum_of_floors() + policy::smallest_budget(problem_.get()).smallest_budget_pages;
}

// Sets the floors to the pages that protected units have.
void Planner::floor_what_is_there(const Order& order, const PlanLimits& limits) {
    const auto units = registry_.units();
    floors_.assign(units.size(), 0);
    for (uint32_t i = 0; i < units.size(); i++)
        if (order.contains(i) && (limits.keep_all || units[i].protections))
            floors_[i] = static_cast<uint32_t>(units[i].own.size());
}

uint64_t Planner::pages_with_kept(const Order& order, const PlanLimits& limits) {
    outside_.state(registry_, order, limits);
    const uint64_t unordered = outside_.there(limits);
    if (!order.known()) return unordered;
    floor_what_is_there(order, limits);
    const uint64_t ordered = state_beside_floors(order, limits);
    floors_.clear();
    return ordered + unordered;
}

// Sets the pages that stay resident in any plan. They are the present pages of protected units, and further pages of
// units that are protected one by one, as long as there is room. `pages` are for the order, which cannot run with fewer
// than `least` of them beside the floors. Afterwards the problem is the one beside the floors.
void Planner::set_floors(const Order& order, const PlanLimits& limits, uint64_t pages, uint64_t least) {
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
    problem_.state(order, limits, floors_);
}

// The pages for units outside the order: what they must have, more if memory is plentiful, and all that the order
// leaves over.
uint64_t Planner::share_of_unordered(const Order& order, const PlanLimits& limits, const Needs& needed,
                                     uint64_t share_pages, bool keeps) {
    const uint64_t ordered_wanted = needed.wanted_pages - outside_.total;
    const uint64_t ordered_least = needed.least_pages - outside_.least;
    const auto units = registry_.units();
    uint64_t ordered_kept = ordered_least;
    for (uint32_t i = 0; i < units.size(); i++)
        if (order.contains(i) && (limits.keep_all || units[i].protections)) ordered_kept += units[i].own.size();
    const uint64_t most = share_pages > ordered_least ? share_pages - ordered_least : 0;
    const uint64_t spare = share_pages > ordered_kept ? share_pages - ordered_kept : 0;
    const uint64_t plenty = std::min(outside_.total - outside_.pools_more, share_pages / kUnorderedPart);
    uint64_t pages = std::min(most, std::max(outside_.good, plenty));
    if (limits.unordered_pages) pages = std::min(most, outside_.least);
    if (share_pages > ordered_wanted) pages = std::max(pages, std::min(outside_.total, share_pages - ordered_wanted));
    // Protected pages come before additional pages, on either side.
    const uint64_t unordered_kept = std::min(
        outside_.total,
        std::max(limits.keep_all ? limits.unordered_now : 0, outside_.kept ? outside_.kept + outside_.least : 0));
    pages = std::max(pages, std::min(most, unordered_kept));
    pages = std::min(pages, std::max({spare, unordered_kept, outside_.least}));
    if (keeps) {
        // Present pages come before room for more, on either side.
        floor_what_is_there(order, limits);
        const uint64_t ordered_there = state_beside_floors(order, limits);
        const uint64_t left = share_pages > ordered_there ? share_pages - ordered_there : 0;
        pages = std::min(most, std::max(outside_.there(limits), std::min(pages, left)));
        floors_.clear();
        problem_.state(order, limits, floors_);
    }
    return pages;
}

Status Planner::make(const Order& order, const PlanLimits& limits, uint64_t share_pages, PlanResult* out) {
    PlanResult result;
    const Needs needed = needs(order, limits, &result.least_unit);
    result.least_pages = needed.least_pages;
    result.share_pages = share_pages;
    result.link_bytes_per_second = static_cast<uint64_t>(limits.link_bytes_per_ns * 1e9);
    result.places.resize(registry_.units().size());
    if (!order.known()) {
        result.unordered_pages = std::min(share_pages, outside_.total);
        *out = std::move(result);
        return Status();
    }
    const auto units = registry_.units();
    const bool keeps = limits.keep_all ||
                       std::any_of(units.begin(), units.end(), [](const Unit& unit) { return unit.protections > 0; });
    result.unordered_pages = share_of_unordered(order, limits, needed, share_pages, keeps);
    // The bounds are those of the whole problem, because protection is a choice of the engine.
    problem_.get().budget_pages = share_pages - result.unordered_pages;
    problem_.find_bounds(order, &result);
    uint64_t floors = 0;
    if (keeps) {
        set_floors(order, limits, problem_.get().budget_pages, needed.least_pages - outside_.least);
        floors = sum_of_floors();
        problem_.get().budget_pages = share_pages - result.unordered_pages - floors;
    }
    auto made = policy::make_plan(problem_.get());
    if (const auto* infeasible = std::get_if<policy::Infeasible>(&made)) {
        result.least_unit = infeasible->unit;
        return Status(SH_ERROR_BUDGET,
                      "no plan fits into " + exact_size_text(problem_.get().budget_pages * problem_.get().page_bytes) +
                          ": " + exact_size_text(infeasible->smallest_budget_pages * problem_.get().page_bytes) +
                          " are needed");
    }
    const policy::Plan& plan = std::get<policy::Plan>(made);
    result.resident_pages = plan.resident_pages + floors;
    result.ring_pages = plan.ring_pages;
    result.bytes_per_step = plan.bytes_per_step / problem_.steps();
    result.step_ns = plan.step_ns / problem_.steps();
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

double Planner::step_ns(const Order& order, const PlanLimits& given, const PlanResult& plan) {
    PlanLimits limits = given;
    if (!plan.unpack.all_pages()) limits.unpack_ns_per_byte = 0;
    if (plan.unpack.kept_pages) limits.kept_part = plan.kept_part;
    floors_.clear();
    problem_.state(order, limits, floors_);
    policy::Plan there;
    there.resident_pages = plan.resident_pages;
    there.ring_pages = plan.ring_pages;
    for (const Place& place : plan.places) there.units.push_back({place.own, place.ring_pages, place.ring_offset});
    there.units.resize(problem_.get().units.size());
    problem_.get().budget_pages = plan.resident_pages + plan.ring_pages;
    const auto simulated = policy::simulate(problem_.get(), there, kSimulatedSteps);
    return simulated ? simulated->step_ns / problem_.steps() : 0;
}

}  // namespace stagehand::core
