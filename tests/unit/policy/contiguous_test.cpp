// Plans for devices that do not map memory by pages. Every unit is whole, and its part of the ring lies in one piece.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "../../stress/scale.h"
#include "policy/bounds.h"
#include "policy/evaluator.h"
#include "policy/layout.h"
#include "problems.h"
#include "reference_simulator.h"

namespace stagehand::policy::test {
namespace {

using stagehand::test::shortened;
using stagehand::test::whole_length;

// Tries every choice of resident units, ring and offsets. This is possible only for a few units of a few pages each.
class EveryPlace {
public:
    explicit EveryPlace(const Case& c) : problem_(c.problem()), shape_(problem_) { plan_.units.resize(c.units.size()); }

    // Returns the shortest step within the budget, or infinity if no choice runs.
    double shortest(uint64_t budget) {
        budget_ = budget;
        shortest_ = std::numeric_limits<double>::infinity();
        choose(0, 0, 0);
        return shortest_;
    }
    bool runs(uint64_t budget) { return shortest(budget) < std::numeric_limits<double>::infinity(); }

private:
    void choose(size_t k, uint64_t resident, uint64_t streamed) {
        if (resident > budget_) return;
        if (k < shape_.order.size()) {
            const uint32_t u = shape_.order[k], pages = shape_.pages[u];
            plan_.units[u] = {pages, 0, 0};
            choose(k + 1, resident + pages, streamed);
            plan_.units[u] = {0, pages, 0};
            choose(k + 1, resident, streamed + pages);
            return;
        }
        for (uint64_t ring = streamed ? 1 : 0; ring <= std::min(budget_ - resident, streamed); ring++) {
            plan_.ring_pages = static_cast<uint32_t>(ring);
            plan_.resident_pages = resident;
            place(0);
        }
    }
    void place(size_t k) {
        if (k == shape_.order.size()) {
            if (auto simulation = simulate(problem_, plan_, 64)) shortest_ = std::min(shortest_, simulation->step_ns);
            return;
        }
        UnitPlan& unit = plan_.units[shape_.order[k]];
        if (unit.streamed_pages > plan_.ring_pages) return;
        for (unit.ring_offset = 0; unit.ring_offset + unit.streamed_pages <= plan_.ring_pages; unit.ring_offset++) {
            place(k + 1);
            if (unit.streamed_pages == 0) break;
        }
        unit.ring_offset = 0;
    }

    const Problem problem_;
    Shape shape_;
    Plan plan_;
    uint64_t budget_ = 0;
    double shortest_ = 0;
};

bool in_one_piece(const UnitPlan& unit, uint32_t ring) {
    return unit.streamed_pages == 0 || uint64_t{unit.ring_offset} + unit.streamed_pages <= ring;
}

TEST(Contiguous, EveryLayoutKeepsPartsInOnePiece) {
    std::mt19937 random(41);
    int placed[4] = {}, together = 0;
    for (int k = 0; k < 4000; k++) {
        Case c = small_random(random, 7, 6);
        c.max_held = 1 + random() % 3;
        c.in_one_piece();
        Problem problem = c.problem();
        Shape shape(problem);
        const uint32_t ring = *std::max_element(shape.pages.begin(), shape.pages.end()) + random() % 18;
        std::vector<UnitPlan> units(c.units.size());
        for (uint32_t u : shape.order)
            if (random() % 4) units[u].streamed_pages = shape.pages[u];
        const Layout layout = static_cast<Layout>(random() % 4);
        if (!lay_out(shape, layout, ring, units)) continue;
        placed[static_cast<int>(layout)]++;
        for (const UnitPlan& unit : units) ASSERT_TRUE(in_one_piece(unit, ring)) << "instance " << k;
        StepProgramme programme;
        const bool runs = ProgrammeTracer(shape).trace(units, ring, programme);
        // These two look where they step.
        if (layout == Layout::rotating || layout == Layout::two_ended) {
            ASSERT_TRUE(runs) << "instance " << k;
        }
        together += runs && c.max_held > 1;
    }
    for (int count : placed) EXPECT_GT(count, 300);
    EXPECT_GT(together, 300);
}

TEST(Contiguous, NoPageIsLeftOutWherePartsArePushedBack) {
    Case c;
    c.page_bytes = 1000;
    c.units.assign(3, {4000});
    c.forward();
    c.in_one_piece();
    Problem problem = c.problem();
    Shape shape(problem);
    std::vector<UnitPlan> units(3, {0, 4, 0});
    ASSERT_TRUE(lay_out(shape, Layout::spread, 7, units));
    EXPECT_EQ(units[0].ring_offset, 0u);
    EXPECT_EQ(units[1].ring_offset, 3u);
    EXPECT_EQ(units[2].ring_offset, 0u);
    ASSERT_TRUE(lay_out(shape, Layout::packed, 7, units));
    for (const UnitPlan& unit : units) EXPECT_EQ(unit.ring_offset, 0u);
    ASSERT_TRUE(lay_out(shape, Layout::packed, 8, units));
    EXPECT_EQ(units[1].ring_offset, 4u);
    EXPECT_EQ(units[2].ring_offset, 0u);
}

TEST(Contiguous, APartThatGoesRoundTheEndDoesNotRun) {
    Case c;
    c.page_bytes = 1000;
    c.link = 1;
    c.units.assign(2, {4000});
    c.forward();
    c.in_one_piece();
    c.budget_pages = 7;
    Plan plan;
    plan.units = {{0, 4, 0}, {0, 4, 4}};
    plan.ring_pages = 7;
    EXPECT_FALSE(simulate(c.problem(), plan, 4));
    plan.units[1].ring_offset = 3;
    EXPECT_TRUE(simulate(c.problem(), plan, 4));
    plan.units[1].ring_offset = 4;
    c.contiguous = false;
    EXPECT_TRUE(simulate(c.problem(), plan, 4));
}

TEST(Contiguous, PlansAreWholeInOnePieceAndRunAsTheySay) {
    std::mt19937 random(42);
    int streamed = 0, resident = 0, refused = 0;
    const int instances = static_cast<int>(shortened(300));
    for (int k = 0; k < instances; k++) {
        Case c = k % 3 ? small_random(random, 9, 9) : unequal(2 + random() % 40, k);
        if (k % 3 == 0) {
            c.budget_pages = c.pages() / 2;
            c.set_compute(0.2 + random() % 3, Compute::random, k);
        }
        c.in_one_piece();
        const uint64_t smallest = smallest_budget(c.problem()).smallest_budget_pages;
        c.budget_pages = smallest + random() % c.pages() - (k % 7 == 0 ? 1 : 0);
        auto answer = make_plan(c.problem());
        if (c.budget_pages < smallest) {
            ASSERT_TRUE(std::holds_alternative<Infeasible>(answer));
            EXPECT_EQ(std::get<Infeasible>(answer).smallest_budget_pages, smallest);
            refused++;
            continue;
        }
        ASSERT_TRUE(std::holds_alternative<Plan>(answer)) << "instance " << k;
        const Plan& plan = std::get<Plan>(answer);
        ASSERT_LE(plan.resident_pages + plan.ring_pages, c.budget_pages);
        for (const UnitPlan& unit : plan.units) {
            ASSERT_TRUE(unit.resident_pages == 0 || unit.streamed_pages == 0) << "instance " << k;
            ASSERT_TRUE(in_one_piece(unit, plan.ring_pages)) << "instance " << k;
            (unit.streamed_pages ? streamed : resident)++;
        }
        auto simulation = simulate(c.problem(), plan, 512);
        ASSERT_TRUE(simulation) << "instance " << k;
        EXPECT_NEAR(simulation->step_ns, plan.step_ns, 1e-6 * plan.step_ns) << "instance " << k;
        EXPECT_EQ(simulation->bytes_per_step, plan.bytes_per_step) << "instance " << k;
        EXPECT_GE(plan.step_ns, least_step_ns(c.problem()) * (1 - 1e-6)) << "instance " << k;
        ASSERT_TRUE(ReferenceSimulator(c.problem(), plan).run(3)) << "instance " << k;
    }
    EXPECT_GT(streamed, instances);
    EXPECT_GT(resident, instances);
    if (whole_length()) {
        EXPECT_GT(refused, 0);
    }
}

// The planner knows four layouts, and this test tries every set of places. The planner may seldom miss the best plan,
// and not by much.
TEST(Contiguous, TinyProblemsAreSolvedAlmost) {
    std::mt19937 random(43);
    int compared = 0, missed = 0;
    double sum = 0;
    while (compared < static_cast<int>(shortened(400))) {
        Case c = small_random(random, 4, 4);
        c.in_one_piece();
        const uint64_t smallest = smallest_budget(c.problem()).smallest_budget_pages;
        const uint64_t pages = Shape(c.problem()).total_pages;
        if (smallest >= pages || pages > 11) continue;
        EveryPlace every(c);
        EXPECT_FALSE(every.runs(smallest - 1)) << "instance " << compared << ": not the smallest budget";
        c.budget_pages = smallest + random() % (pages - smallest);
        const double best = every.shortest(c.budget_pages);
        auto answer = make_plan(c.problem());
        ASSERT_TRUE(std::holds_alternative<Plan>(answer));
        const double step = std::get<Plan>(answer).step_ns;
        EXPECT_GE(step, best * (1 - 1e-9)) << "instance " << compared;
        EXPECT_LE(step, best * 1.35) << "instance " << compared;
        missed += step > best * 1.005;
        sum += step / best;
        compared++;
    }
    if (!whole_length()) return;
    EXPECT_LE(sum, 1.01 * compared);
    EXPECT_LE(missed, compared / 5);
}

// The cost of whole units: nothing if the step computes for longer than it copies, and otherwise about the bytes of a
// slot.
TEST(Contiguous, ModelsLargerThanTheBudget) {
    for (double fraction : {0.25, 0.5}) {
        for (double ratio : {0.25, 1.0, 4.0}) {
            Case layers = eight_billion(), equal = eight_billion();
            equal.units.assign(24, {256 * MiB});
            equal.forward();
            for (Case* c : {&layers, &equal, &equal}) {
                if (c == &equal && equal.contiguous) equal.forward_backward();
                c->set_budget(fraction);
                c->set_compute(ratio, Compute::equal);
                c->in_one_piece();
                auto answer = make_plan(c->problem());
                ASSERT_TRUE(std::holds_alternative<Plan>(answer));
                const double most = ratio > 2 ? 1.005 : 1.12;
                EXPECT_LE(std::get<Plan>(answer).step_ns, most * least_step_ns(c->problem()))
                    << fraction << ", " << ratio;
            }
        }
    }
}

}  // namespace
}  // namespace stagehand::policy::test
