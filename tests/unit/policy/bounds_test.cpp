// The bounds: known formulas, the fact that no plan beats them, and the smallest budget.
#include <gtest/gtest.h>

#include "policy/bounds.h"
#include "policy/evaluator.h"
#include "policy/layout.h"
#include "policy/plan_bound.h"
#include "problems.h"

namespace stagehand::policy::test {
namespace {

uint64_t surplus_by_trying(const std::vector<uint64_t>& sizes, uint64_t memory) {
    for (uint64_t d = 0;; d++) {
        uint64_t sum = d;
        for (uint64_t s : sizes) sum += s > d ? s - d : 0;
        if (sum <= memory) return d;
    }
}

TEST(Bounds, CycleSurplusIsTheSmallestThatFits) {
    std::mt19937 random(5);
    for (int k = 0; k < 3000; k++) {
        std::vector<uint64_t> sizes(1 + random() % 8);
        uint64_t sum = 0, largest = 0;
        for (uint64_t& s : sizes) {
            s = 1 + random() % (k % 2 ? 9 : 60);
            sum += s;
            largest = std::max(largest, s);
        }
        uint64_t memory = largest + random() % (sum - largest + 3);
        ASSERT_EQ(surplus_by_trying(sizes, memory), cycle_surplus(sizes, memory)) << "instance " << k;
    }
    EXPECT_EQ(0u, cycle_surplus({}, 0));
}

// Half of the units come from a source that is four times slower. What fits is kept of those. The rest of them is read
// while the others are copied.
TEST(Bounds, BytesOfSlowSourcesCostTheirTime) {
    Case c;
    for (int u = 0; u < 20; u++) c.units.push_back({64 * MiB, false, {}, u % 2 ? 4.0 : 1.0});
    c.forward();
    c.page_bytes = MiB;
    const double half = 640.0 * MiB / c.link;
    c.budget_pages = 320;
    EXPECT_NEAR(4 * half / 2, simple_step_ns(c.problem()), 1e-6 * half);
    c.budget_pages = 960;
    EXPECT_NEAR(half / 2, simple_step_ns(c.problem()), 1e-6 * half);
    Case fast = c;
    for (Unit& unit : fast.units) unit.slowdown = 1;
    EXPECT_EQ(least_bytes(fast.problem()), least_bytes(c.problem())) << "bytes are bytes, from wherever they come";
    for (const uint64_t pages : {320u, 700u, 960u}) {
        c.budget_pages = pages;
        const auto made = make_plan(c.problem());
        const Plan& plan = std::get<Plan>(made);
        EXPECT_GE(plan.step_ns, least_step_ns(c.problem()));
        EXPECT_LE(plan.step_ns, 1.75 * simple_step_ns(c.problem())) << pages;
    }
}

// The proof's minimum over what turns over (d) and how the parts share it, by trying every d.
double cycle_bound_by_trying(const Case& c) {
    const double memory = static_cast<double>(c.budget_pages * c.page_bytes);
    const double beyond = static_cast<double>(c.bytes()) - memory;
    double best = HUGE_VAL;
    for (double d = 0; d <= memory; d += 5) {
        double free_room = 0, full_room = 0, idle = 0;  // for bytes of parts: at no cost, and at all
        for (const Use& use : c.trace) {
            double y = static_cast<double>(use.compute_ns) * c.link;
            double s = std::min(static_cast<double>(c.units[use.unit].bytes), d);
            free_room += std::min(s, std::max(0.0, d - y));
            full_room += s;
            idle += std::max(0.0, y - d);
        }
        if (full_room < beyond + d) continue;
        best = std::min(best, beyond + d + idle + std::max(0.0, beyond + d - free_room));
    }
    return std::max(best / c.link, c.compute_ns());
}

TEST(Bounds, TheCycleBoundIsTheLeastOverWhatTurnsOver) {
    std::mt19937 random(9);
    int sharper = 0;
    for (int k = 0; k < 300; k++) {
        Case c;
        c.page_bytes = 1;
        c.link = 1;
        const bool equal = k % 2;
        for (uint32_t u = 2 + random() % 7; u > 0; u--) c.units.push_back({equal ? 3000 : 500 + random() % 6000});
        c.forward();
        const double scale = std::pow(10.0, (random() % 200 - 100.0) / 100);
        for (Use& use : c.trace) use.compute_ns = static_cast<uint64_t>(scale * static_cast<double>(random() % 6000));
        uint64_t largest = 0;
        for (const Unit& unit : c.units) largest = std::max(largest, unit.bytes);
        c.budget_pages = largest + random() % (c.bytes() - largest);
        double expected = cycle_bound_by_trying(c);
        double got = least_step_ns(c.problem());
        // The grid only finds more than there is; the other bounds may be above this one.
        ASSERT_GE(got, expected - 50) << "instance " << k;
        c.max_held = 9;  // for which the bound over instants has no room
        got = least_step_ns(c.problem());
        ASSERT_NEAR(got, expected, 50) << "instance " << k;
        sharper += got > simple_step_ns(c.problem()) * 1.01;
    }
    EXPECT_GT(sharper, 50);
}

// Plans with random parts, rings and layouts: a plan that runs within the budget must not be faster than the bounds.
TEST(Bounds, NoPlanBeatsThem) {
    std::mt19937 random(6);
    int ran = 0, close = 0;
    for (int k = 0; k < 500; k++) {
        Case c = small_random(random, 6, 5);
        if (k % 3 == 2) c.add_gaps(random);
        if (k % 5 == 4) c.add_slow_sources(random);
        c.budget_pages = 1;
        Shape everything(c.problem());
        uint64_t least_budget = smallest_budget(c.problem()).smallest_budget_pages;
        if (least_budget >= everything.total_pages) continue;
        c.budget_pages = least_budget + random() % (everything.total_pages - least_budget);
        Problem problem = c.problem();
        Shape shape(problem);
        Evaluator evaluator(shape, 200);
        const uint64_t bytes = least_bytes(problem);
        const double step = least_plan_ns(problem);
        ASSERT_LE(simple_step_ns(problem), least_step_ns(problem) * (1 + 1e-9));
        ASSERT_LE(least_step_ns(problem), step);
        for (int attempt = 0; attempt < 300; attempt++) {
            Candidate candidate;
            uint64_t resident = 0;
            for (size_t u = 0; u < c.units.size(); u++) {
                uint32_t part = random() % (shape.pages[u] + 1);
                if (c.units[u].whole) part = part > 0 ? shape.pages[u] : 0;
                candidate.parts.push_back(part);
                resident += shape.pages[u] - part;
            }
            if (resident >= c.budget_pages) continue;
            candidate.ring = static_cast<uint32_t>(c.budget_pages - resident);
            candidate.layout = static_cast<Layout>(random() % 4);
            std::optional<Cost> cost = evaluator.cost(candidate);
            if (!cost) continue;
            ran++;
            ASSERT_GE(cost->bytes, bytes) << "instance " << k;
            ASSERT_GE(cost->step_ns, step * (1 - 1e-6)) << "instance " << k;
            close += cost->step_ns < step * 1.02;
        }
    }
    EXPECT_GT(ran, 10'000);
    EXPECT_GT(close, 100);
}

TEST(SmallestBudget, IsTheWidestWindow) {
    Case c = unequal(9, 7);
    c.page_bytes = MiB;
    c.units[4].bytes = 100 * MiB;
    c.units[5].bytes = 90 * MiB;
    Infeasible smallest = smallest_budget(c.problem());
    EXPECT_EQ(100u, smallest.smallest_budget_pages);
    EXPECT_EQ(4u, smallest.unit);
    c.max_held = 2;
    EXPECT_EQ(190u, smallest_budget(c.problem()).smallest_budget_pages);
    c.max_held = 100;
    EXPECT_EQ(c.pages(), smallest_budget(c.problem()).smallest_budget_pages);
    // The last and the first are neighbours too.
    std::swap(c.units[4], c.units[0]);
    std::swap(c.units[5], c.units[8]);
    c.max_held = 2;
    smallest = smallest_budget(c.problem());
    EXPECT_EQ(190u, smallest.smallest_budget_pages);
    EXPECT_EQ(0u, smallest.unit);
}

TEST(SmallestBudget, RoundsToWholePagesAndLeavesUnusedUnitsOut) {
    Case c;
    c.page_bytes = 1000;
    c.units = {{1001}, {5000}, {0}, {1}};
    c.trace = {{0, 0}, {2, 0}, {3, 0}};
    EXPECT_EQ(2u, smallest_budget(c.problem()).smallest_budget_pages);
    EXPECT_EQ(0u, smallest_budget(c.problem()).unit);
}

// Returns whether any placement of all units in a ring works. The budget below the smallest one must refuse every
// placement; this is tried on tiny problems.
bool any_placement(const Case& c, uint32_t ring) {
    Problem problem = c.problem();
    Shape shape(problem);
    ProgrammeTracer tracer(shape);
    StepProgramme programme;
    std::vector<UnitPlan> units(c.units.size());
    std::vector<uint32_t> placed;
    for (uint32_t u : shape.order) {
        if (shape.pages[u] > ring) return false;
        units[u].streamed_pages = shape.pages[u];
    }
    for (;;) {
        if (tracer.trace(units, ring, programme)) return true;
        size_t k = 0;
        while (k < shape.order.size() && ++units[shape.order[k]].ring_offset == ring)
            units[shape.order[k++]].ring_offset = 0;
        if (k == shape.order.size()) return false;
    }
}

TEST(SmallestBudget, IsRarelyAboveWhatAnyPlacementNeeds) {
    std::mt19937 random(8);
    int exact = 0, above = 0;
    for (int k = 0; k < 300; k++) {
        Case c = small_random(random, 4, 3);
        c.max_held = 1 + random() % 3;
        for (Unit& unit : c.units) unit.whole = false;
        Problem problem = c.problem();
        Shape shape(problem);
        uint64_t smallest = smallest_budget(problem).smallest_budget_pages;
        ASSERT_GE(smallest, widest_window(shape, shape.pages).pages);
        ASSERT_TRUE(any_placement(c, static_cast<uint32_t>(smallest)));
        (smallest == 0 || !any_placement(c, static_cast<uint32_t>(smallest) - 1) ? exact : above)++;
        if (c.max_held == 1) {
            ASSERT_EQ(smallest, widest_window(shape, shape.pages).pages);
        }
    }
    EXPECT_LE(above, exact / 50);
}

}  // namespace
}  // namespace stagehand::policy::test
