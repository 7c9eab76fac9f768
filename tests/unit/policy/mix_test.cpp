// The plan for a mix of kinds: beside a simulation of the whole cycle as one trace, beside brute force, and beside the
// plans for each kind alone.
#include <gtest/gtest.h>

#include <limits>

#include "../../stress/scale.h"
#include "policy/bounds.h"
#include "policy/layout.h"
#include "policy/mix.h"
#include "policy/programme.h"
#include "policy/recurrence.h"
#include "policy/shape.h"
#include "problems.h"

namespace stagehand::policy::test {
namespace {

using stagehand::test::shortened;

struct MixCase {
    Case base;
    std::vector<std::vector<Use>> traces;
    std::vector<Visit> cycle;
    std::vector<std::vector<Use>> others = {};

    Mix mix() const { return {traces, cycle, others}; }
    Problem problem() {
        base.trace = base_trace(mix(), base.max_held).trace;
        return base.problem();
    }
    // All steps of the cycle, as one trace.
    std::vector<Use> whole_cycle() const {
        std::vector<Use> whole;
        for (const Visit& visit : cycle)
            for (uint32_t k = 0; k < visit.steps; k++)
                whole.insert(whole.end(), traces[visit.kind].begin(), traces[visit.kind].end());
        return whole;
    }
    uint32_t steps() const {
        uint32_t steps = 0;
        for (const Visit& visit : cycle) steps += visit.steps;
        return steps;
    }
    void add_kind(const std::vector<Use>& trace, double compute_ns) {
        traces.push_back(trace);
        for (Use& use : traces.back())
            use.compute_ns = static_cast<uint64_t>(compute_ns / static_cast<double>(trace.size()));
    }
};

// Random kinds over the same units: with other times, with units left out, ending early, or backwards.
MixCase random_mix(std::mt19937& random, uint32_t most_units, uint32_t most_pages, bool one_order) {
    MixCase c;
    c.base = small_random(random, most_units, most_pages);
    c.traces.push_back(c.base.trace);
    const uint32_t kinds = 2 + random() % 2;
    while (c.traces.size() < kinds) {
        std::vector<Use> trace = c.traces[0];
        const uint32_t way = one_order ? 3 : random() % 4;
        if (way == 0 && trace.size() > 2) trace.resize(1 + random() % (trace.size() - 1));
        if (way == 1 && trace.size() > 2) trace.erase(trace.begin() + static_cast<long>(random() % trace.size()));
        if (way == 2) std::ranges::reverse(trace);
        const double scale = std::pow(10.0, (random() % 300 - 150.0) / 100);
        for (Use& use : trace) use.compute_ns = static_cast<uint64_t>(static_cast<double>(use.compute_ns) * scale) + 1;
        c.traces.push_back(trace);
    }
    for (uint32_t kind = 0; kind < kinds; kind++) c.cycle.push_back({kind, 1 + static_cast<uint32_t>(random() % 5)});
    return c;
}

bool choose_budget(MixCase& c, std::mt19937& random) {
    const uint64_t smallest = smallest_budget(c.problem()).smallest_budget_pages;
    const uint64_t pages = Shape(c.problem()).total_pages;
    if (smallest >= pages) return false;
    c.base.budget_pages = smallest + random() % (pages - smallest);
    return true;
}

TEST(Mix, TakesTheTimeOfItsCycle) {
    std::mt19937 random(41);
    uint64_t compared = 0;
    while (compared < shortened(200)) {
        MixCase c = random_mix(random, 6, 6, compared % 2);
        if (!choose_budget(c, random)) continue;
        const auto made = make_mixed_plan(c.problem(), c.mix());
        if (!std::holds_alternative<MixedPlan>(made)) continue;
        compared++;
        const MixedPlan& plan = std::get<MixedPlan>(made);
        const std::vector<Use> whole = c.whole_cycle();
        Problem cycle = c.problem();
        cycle.trace = whole;
        const auto simulated = simulate(cycle, plan.plan, 64);
        ASSERT_TRUE(simulated) << "instance " << compared;
        const double step = simulated->step_ns / c.steps();
        EXPECT_NEAR(plan.plan.step_ns, step, 0.005 * step) << "instance " << compared;
        EXPECT_NEAR(static_cast<double>(plan.plan.bytes_per_step),
                    static_cast<double>(simulated->bytes_per_step) / c.steps(), 1.0)
            << "instance " << compared;
        EXPECT_GE(plan.plan.step_ns, mixed_bound_ns(c.problem(), c.mix()) * 0.999) << "instance " << compared;
        for (const KindTimes& kind : plan.kinds) EXPECT_GE(kind.step_ns, kind.bound_ns * 0.999);
        EXPECT_LE(plan.plan.resident_pages + plan.plan.ring_pages, c.base.budget_pages);
    }
}

TEST(Mix, OfOneKindIsThePlanForIt) {
    for (const double budget : {0.25, 0.5, 0.9}) {
        MixCase c;
        c.base = eight_billion();
        c.base.set_budget(budget);
        c.add_kind(c.base.trace, c.base.copy_ns());
        c.cycle = {{0, 1}};
        const Plan alone = std::get<Plan>(make_plan(c.problem()));
        const MixedPlan mixed = std::get<MixedPlan>(make_mixed_plan(c.problem(), c.mix()));
        EXPECT_LE(mixed.plan.step_ns, alone.step_ns * 1.002);
        EXPECT_DOUBLE_EQ(mixed.kinds[0].alone_ns, alone.step_ns);
    }
}

TEST(Mix, LeavesRoomForOrdersThatHaveNoTurn) {
    std::mt19937 random(44);
    for (uint64_t compared = 0; compared < shortened(300);) {
        MixCase c = random_mix(random, 6, 6, false);
        c.base.max_held = 1 + random() % 3;
        c.others = {c.traces.back()};
        c.traces.pop_back();
        c.cycle.pop_back();
        if (!choose_budget(c, random)) continue;
        compared++;
        const Problem problem = c.problem();
        const auto made = make_mixed_plan(problem, c.mix());
        ASSERT_TRUE(std::holds_alternative<MixedPlan>(made)) << "instance " << compared;
        const Plan& plan = std::get<MixedPlan>(made).plan;
        const Shape shape(problem);
        ProgrammeTracer tracer(shape);
        StepProgramme step;
        tracer.begin(plan.ring_pages);
        for (int twice = 0; twice < 2; twice++)
            EXPECT_TRUE(tracer.follow(plan.units, c.others[0], step)) << "instance " << compared;
    }
}

// Every choice of parts and ring, with each layout, timed as one trace.
class BruteForceMix {
public:
    explicit BruteForceMix(MixCase& c) : whole_(c.whole_cycle()), steps_(c.steps()), problem_(c.problem()) {}

    double shortest() {
        const Shape shape(problem_);
        plan_.units.resize(shape.pages.size());
        choose(shape, 0, 0, 0);
        return shortest_ / steps_;
    }

private:
    void choose(const Shape& shape, size_t k, uint64_t resident, uint64_t streamed) {
        if (resident > problem_.budget_pages) return;
        if (k < shape.order.size()) {
            const uint32_t u = shape.order[k];
            const uint32_t step = problem_.units[u].whole ? shape.pages[u] : 1;
            for (uint32_t part = 0; part <= shape.pages[u]; part += step) {
                plan_.units[u] = {shape.pages[u] - part, part, 0};
                choose(shape, k + 1, resident + shape.pages[u] - part, streamed + part);
            }
            return;
        }
        Problem cycle = problem_;
        cycle.trace = whole_;
        const uint64_t most = std::min(problem_.budget_pages - resident, streamed);
        for (uint32_t ring = 1; ring <= most; ring++)
            for (const Layout layout : {Layout::packed, Layout::spread, Layout::rotating, Layout::two_ended}) {
                if (shape.held == 1 && layout == Layout::rotating) break;
                bool fits = true;
                for (const uint32_t u : shape.order) fits = fits && plan_.units[u].streamed_pages <= ring;
                if (!fits || !lay_out(shape, layout, ring, plan_.units)) continue;
                plan_.ring_pages = ring;
                plan_.resident_pages = resident;
                if (const auto simulated = simulate(cycle, plan_, 32))
                    shortest_ = std::min(shortest_, simulated->step_ns);
            }
    }

    const std::vector<Use> whole_;
    const double steps_;
    const Problem problem_;
    Plan plan_;
    double shortest_ = std::numeric_limits<double>::infinity();
};

void compare_mixes(uint32_t seed, uint64_t count, bool one_order, double most) {
    std::mt19937 random(seed);
    uint64_t compared = 0;
    double worst = 1;
    while (compared < shortened(count)) {
        MixCase c = random_mix(random, 4, 4, one_order);
        if (!choose_budget(c, random)) continue;
        const auto made = make_mixed_plan(c.problem(), c.mix());
        const double best = BruteForceMix(c).shortest();
        if (!std::isfinite(best)) continue;
        compared++;
        ASSERT_TRUE(std::holds_alternative<MixedPlan>(made)) << "instance " << compared;
        const double ratio = std::get<MixedPlan>(made).plan.step_ns / best;
        EXPECT_LE(ratio, most) << "instance " << compared << " of seed " << seed;
        worst = std::max(worst, ratio);
    }
    testing::Test::RecordProperty("worst", std::to_string(worst));
}

TEST(Mix, TinyMixesAreSolved) { compare_mixes(42, 150, true, 1.01); }
TEST(Mix, TinyMixesOfOrdersThatBranchAreSolved) { compare_mixes(43, 150, false, 1.01); }

// Prefill and decode: never slower than the best of the plans for each kind alone.
TEST(Mix, IsNoSlowerThanThePlansForItsKindsAlone) {
    double gained = 1;
    for (Case base : {eight_billion(), unequal(80, 3)})
        for (const double budget : {0.25, 0.5, 0.75, 0.9})
            for (const uint32_t decodes : {1u, 10u, 100u}) {
                MixCase c;
                c.base = base;
                c.base.set_budget(budget);
                c.add_kind(base.trace, 3 * c.base.copy_ns());
                c.add_kind(base.trace, 0.1 * c.base.copy_ns());
                c.cycle = {{0, 1}, {1, decodes}};
                const MixedPlan mixed = std::get<MixedPlan>(make_mixed_plan(c.problem(), c.mix()));
                double best = std::numeric_limits<double>::infinity(), worst = 0;
                for (const std::vector<Use>& trace : c.traces) {
                    Problem alone = c.problem();
                    alone.trace = trace;
                    const auto times = simulate_mix(c.problem(), c.mix(), std::get<Plan>(make_plan(alone)));
                    ASSERT_TRUE(times);
                    best = std::min(best, times->step_ns);
                    worst = std::max(worst, times->step_ns);
                }
                EXPECT_LE(mixed.plan.step_ns, 1.002 * best) << budget << ", 1 to " << decodes;
                gained = std::max(gained, worst / mixed.plan.step_ns);
            }
    EXPECT_GT(gained, 1.02) << "one of the plans has to be worse, or this test shows nothing";
}

}  // namespace
}  // namespace stagehand::policy::test
