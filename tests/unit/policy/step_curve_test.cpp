// Compares step curves with the plans that are made in the end, and tests their promises.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "../../stress/scale.h"
#include "policy/bounds.h"
#include "policy/step_curve.h"
#include "problems.h"

namespace stagehand::policy::test {
namespace {

using stagehand::test::in_sample;
using stagehand::test::shortened;
using stagehand::test::whole_length;

double plan_ns(Case& c, uint64_t pages) {
    c.budget_pages = pages;
    return std::get<Plan>(make_plan(c.problem())).step_ns;
}

double curve_ns(const std::vector<CurvePoint>& curve, uint64_t pages) {
    const Stake stake{0, 0, 1, curve};
    return time_per_second({&stake, 1}, {&pages, 1});
}

void expect_falling(const std::vector<CurvePoint>& curve) {
    for (size_t k = 0; k + 1 < curve.size(); k++) {
        EXPECT_LT(curve[k].pages, curve[k + 1].pages);
        EXPECT_GE(curve[k].step_ns, curve[k + 1].step_ns);
    }
}

TEST(StepCurve, KeepsToTheRangeAndTheNumberOfPoints) {
    Case c = eight_billion();
    c.set_budget(0.5);
    c.set_compute(0.5, Compute::equal);
    for (size_t points : {1, 2, 3, 4, 7, 64}) {
        const auto curve = step_curve(c.problem(), 600, 1200, points);
        ASSERT_FALSE(curve.empty());
        EXPECT_LE(curve.size(), points);
        EXPECT_EQ(1200u, curve.back().pages);
        EXPECT_EQ(points > 1 ? 600u : 1200u, curve.front().pages);
        expect_falling(curve);
    }
    EXPECT_EQ(1u, step_curve(c.problem(), 700, 700).size());
    EXPECT_EQ(1u, step_curve(c.problem(), 0, 126).size()) << "just the smallest budget";
    EXPECT_TRUE(step_curve(c.problem(), 0, 125).empty()) << "nothing runs";
    EXPECT_TRUE(step_curve(c.problem(), 800, 700).empty());
    EXPECT_TRUE(step_curve(c.problem(), c.pages() + 1, UINT64_MAX).empty());
    EXPECT_TRUE(step_curve(c.problem(), 0, UINT64_MAX, 0).empty());
}

TEST(StepCurve, MalformedAndEmptyProblems) {
    Case c = eight_billion();
    c.link = 0;
    EXPECT_TRUE(step_curve(c.problem(), 0, UINT64_MAX).empty());
    Case nothing;
    const auto none = step_curve(nothing.problem(), 0, UINT64_MAX);
    ASSERT_EQ(1u, none.size());
    EXPECT_EQ(0u, none[0].pages);
    EXPECT_EQ(0, none[0].step_ns);
    Case weightless;  // computes without weights
    weightless.units.push_back({0});
    weightless.trace.push_back({0, 500});
    const auto compute = step_curve(weightless.problem(), 0, UINT64_MAX);
    ASSERT_EQ(1u, compute.size());
    EXPECT_EQ(500, compute[0].step_ns);
}

TEST(StepCurve, IsCloseToThePlansThatAreMade) {
    std::mt19937 random(111);
    double off = 0;
    int compared = 0;
    for (uint32_t round = 0; round < shortened(30); round++) {
        Case c;
        c.page_bytes = 2 * MiB;
        const uint32_t count = 2 + random() % 60;
        for (uint32_t u = 0; u < count; u++)
            c.units.push_back({(round % 2 ? 40 : 1 + random() % 60) * MiB, round % 5 == 0});
        if (round % 3 == 0)
            c.forward_backward();
        else
            c.forward();
        c.max_held = 1 + round % 4 / 3;
        c.set_budget((random() % 80) / 100.0);
        c.set_compute(std::pow(10, (random() % 200) / 100.0 - 1), Compute::random, round);
        const uint64_t smallest = smallest_budget(c.problem()).smallest_budget_pages;
        const auto curve = step_curve(c.problem(), 0, UINT64_MAX);
        expect_falling(curve);
        for (uint64_t eighth = 1; eighth < 8; eighth += 2) {
            const uint64_t pages = smallest + (c.pages() - smallest) * eighth / 8;
            const double ratio = curve_ns(curve, pages) / plan_ns(c, pages);
            EXPECT_GT(ratio, 0.93) << "round " << round << ", " << pages << " pages";
            EXPECT_LT(ratio, 1.3) << "round " << round << ", " << pages << " pages";
            off += std::fabs(ratio - 1);
            compared++;
        }
    }
    if (whole_length()) {
        EXPECT_LT(off / compared, 0.02);
    }
}

// The curve evaluates few plans or none for many units. Its values must still be close to the possible times.
TEST(StepCurve, IsCloseToTheBoundWhereThereAreManyUnits) {
    uint64_t number = 0;
    for (uint32_t count : {600u, 1'000u, 20'000u})
        for (double ratio : {0.25, 1.0, 4.0})
            for (bool backward : {false, true}) {
                if (!in_sample(number++)) continue;
                Case c = unequal(count, 7);
                if (backward) c.forward_backward();
                c.set_budget(0.5);
                c.set_compute(ratio, Compute::random);
                const auto curve = step_curve(c.problem(), 0, UINT64_MAX);
                expect_falling(curve);
                for (double budget : {0.03, 0.1, 0.5, 0.8}) {
                    c.set_budget(budget);
                    const double off = curve_ns(curve, c.budget_pages) / least_step_ns(c.problem());
                    EXPECT_GT(off, 0.99) << count << " units, ratio " << ratio << ", budget " << budget;
                    EXPECT_LT(off, 1.1) << count << " units, ratio " << ratio << ", budget " << budget;
                }
            }
}

// Units used often stay resident before those used rarely.
// Points are left out where the curve is straight.
TEST(StepCurve, KeepsThePointsThatTellMost) {
    for (const double part : {0.2, 0.5, 0.8}) {
        Case c = eight_billion();
        c.set_budget(0.5);
        c.set_compute(part, Compute::equal);
        const auto all = step_curve(c.problem(), 0, UINT64_MAX, 64), few = step_curve(c.problem(), 0, UINT64_MAX, 6);
        double worst = 1;
        for (const CurvePoint& point : all)
            worst = std::max(worst, curve_ns(few, point.pages) / curve_ns(all, point.pages));
        EXPECT_LE(worst, 1.1) << part;
    }
}

}  // namespace
}  // namespace stagehand::policy::test
