#include "policy/mix.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "policy/bounds.h"
#include "policy/layout.h"
#include "policy/mix_clock.h"
#include "policy/search.h"
#include "policy/shape.h"

namespace stagehand::policy {

namespace {

std::vector<uint64_t> steps_of_kinds(const Mix& mix) {
    std::vector<uint64_t> steps(mix.traces.size());
    for (const Visit& visit : mix.cycle) steps[visit.kind] += visit.steps;
    return steps;
}

uint64_t steps_of_cycle(const Mix& mix) {
    uint64_t steps = 0;
    for (const Visit& visit : mix.cycle) steps += visit.steps;
    return steps;
}

Problem problem_of(const Problem& problem, std::span<const Use> trace) {
    Problem of = problem;
    of.trace = trace;
    return of;
}

// Appends the units of all orders that the trace lacks, as uses without compute.
void append_missing(const Mix& mix, std::vector<Use>& trace) {
    std::vector<bool> seen;
    const auto see = [&](uint32_t unit) {
        if (unit >= seen.size()) seen.resize(unit + 1);
        const bool before = seen[unit];
        seen[unit] = true;
        return before;
    };
    for (const Use& use : trace) see(use.unit);
    for (const auto& orders : {mix.traces, mix.others})
        for (const std::vector<Use>& of : orders)
            for (const Use& use : of)
                if (!see(use.unit)) trace.push_back({use.unit, 0});
}

// The kind with the most different units; among these, the one with the most steps.
uint32_t widest_kind(const Mix& mix) {
    const std::vector<uint64_t> steps = steps_of_kinds(mix);
    std::pair<size_t, uint64_t> most;
    uint32_t widest = 0;
    for (uint32_t kind = 0; kind < mix.traces.size(); kind++) {
        std::vector<uint32_t> units;
        for (const Use& use : mix.traces[kind]) units.push_back(use.unit);
        std::ranges::sort(units);
        const size_t different = static_cast<size_t>(std::ranges::unique(units).begin() - units.begin());
        if (const std::pair of(different, steps[kind]); of > most) {
            most = of;
            widest = kind;
        }
    }
    return widest;
}

// The common order of all kinds, with the mean times.
std::vector<Use> mean_trace(const Mix& mix) {
    const std::vector<uint64_t> steps = steps_of_kinds(mix);
    const double all = static_cast<double>(steps_of_cycle(mix));
    std::vector<Use> trace;
    for (size_t j = 0; j < mix.traces[0].size(); j++) {
        double mean = 0;
        for (size_t kind = 0; kind < steps.size(); kind++)
            mean += static_cast<double>(mix.traces[kind][j].compute_ns) * static_cast<double>(steps[kind]) / all;
        trace.push_back({mix.traces[0][j].unit, static_cast<uint64_t>(mean + 0.5)});
    }
    return trace;
}

// The parts of a plan for one kind, as a candidate for the mix: the units that the kind lacks are streamed.
Candidate seed_of(const Shape& shape, const Plan& plan, Layout layout) {
    Candidate seed{shape.pages, std::max(1u, plan.ring_pages), layout};
    for (const uint32_t u : shape.order) {
        const UnitPlan& unit = plan.units[u];
        if (unit.resident_pages || unit.streamed_pages) seed.parts[u] = unit.streamed_pages;
        seed.ring = std::max(seed.ring, seed.parts[u]);
    }
    return seed;
}

}  // namespace

BaseTrace base_trace(const Mix& mix, uint32_t max_held) {
    BaseTrace base;
    const auto add = [&](const std::vector<Use>& trace, uint32_t times) {
        for (uint32_t k = 0; k < times; k++) base.trace.insert(base.trace.end(), trace.begin(), trace.end());
        base.steps += times;
    };
    const bool one_order = has_one_order(mix);
    const std::vector<Use> common = one_order ? mean_trace(mix) : std::vector<Use>();
    const std::span<const std::vector<Use>> orders = one_order ? std::span(&common, 1) : mix.traces;
    if (max_held <= 1 || orders.size() + mix.others.size() == 1) {
        add(orders[one_order ? 0 : widest_kind(mix)], 1);
        append_missing(mix, base.trace);
        return base;
    }
    for (const std::vector<Use>& trace : orders) add(trace, 2);
    if (orders.size() > 1 && !mix.others.empty()) add(orders[0], 1);  // the cycle begins anew
    for (const std::vector<Use>& trace : mix.others) add(trace, 2);
    return base;
}

double mixed_bound_ns(const Problem& problem, const Mix& mix) {
    const std::vector<uint64_t> steps = steps_of_kinds(mix);
    double sum = 0;
    for (size_t kind = 0; kind < steps.size(); kind++)
        sum += static_cast<double>(steps[kind]) * simple_step_ns(problem_of(problem, mix.traces[kind]));
    return sum / static_cast<double>(steps_of_cycle(mix));
}

std::optional<MixedTimes> simulate_mix(const Problem& problem, const Mix& mix, const Plan& plan) {
    if (!well_formed(problem)) return std::nullopt;
    const Shape shape(problem);
    if (!covers_the_units(shape, plan)) return std::nullopt;
    MixClock clock(shape, mix);
    if (!clock.run(plan.units, plan.ring_pages)) return std::nullopt;
    MixedTimes times{clock.step_ns(), clock.bytes_per_step(), {}};
    for (uint32_t kind = 0; kind < mix.traces.size(); kind++) times.kind_ns.push_back(clock.kind_ns(kind));
    return times;
}

std::variant<MixedPlan, Infeasible> make_mixed_plan(const Problem& problem, const Mix& mix) {
    if (!well_formed(problem)) return Infeasible{std::numeric_limits<uint64_t>::max(), 0};
    const Shape shape(problem);
    const TightRing tight = tightest_ring(shape);
    const bool all_fit = shape.total_pages <= problem.budget_pages;
    if (!all_fit && tight.pages > problem.budget_pages)
        return Infeasible{tight.pages, widest_window(shape, shape.pages).unit};
    MixedPlan made;
    std::vector<std::vector<Use>> guide_traces(mix.traces.begin(), mix.traces.end());
    std::vector<Problem> guide_problems;
    std::vector<Shape> guides;
    std::vector<Candidate> seeds{{shape.pages, tight.pages, tight.layout}};
    guide_problems.reserve(mix.traces.size());  // the shapes point at them
    for (std::vector<Use>& trace : guide_traces) {
        const Problem alone = problem_of(problem, trace);
        auto found = search_plan(Shape(alone));
        if (const auto* infeasible = std::get_if<Infeasible>(&found)) return *infeasible;
        const Searched& searched = std::get<Searched>(found);
        made.kinds.push_back({0, simple_step_ns(alone), searched.plan.step_ns});
        seeds.push_back(
            seed_of(shape, searched.plan, searched.candidate ? searched.candidate->layout : Layout::packed));
        append_missing(mix, trace);
        guide_problems.push_back(problem_of(problem, trace));
        guides.emplace_back(guide_problems.back());
    }
    if (all_fit) {
        made.plan = std::get<Searched>(search_plan(shape)).plan;
    } else {
        auto plan = search_mix(shape, mix, guides, seeds, mixed_bound_ns(problem, mix));
        if (!plan) return Infeasible{tight.pages + 1, widest_window(shape, shape.pages).unit};
        made.plan = std::move(*plan);
    }
    const auto times = simulate_mix(problem, mix, made.plan);
    if (!times) return Infeasible{std::numeric_limits<uint64_t>::max(), 0};
    made.plan.step_ns = times->step_ns;
    made.plan.bytes_per_step = times->bytes_per_step;
    for (size_t kind = 0; kind < made.kinds.size(); kind++) made.kinds[kind].step_ns = times->kind_ns[kind];
    return made;
}

}  // namespace stagehand::policy
