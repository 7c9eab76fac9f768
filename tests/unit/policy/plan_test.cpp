// The promises of make_plan on real shapes: how close plans are to the bounds, which budgets work, and how repeatable
// plans are.
#include <gtest/gtest.h>

#include <numeric>

#include "../../stress/scale.h"
#include "policy/bounds.h"
#include "policy/recurrence.h"
#include "policy/shape.h"
#include "problems.h"

namespace stagehand::policy::test {
namespace {

using stagehand::test::in_sample;
using stagehand::test::shortened;
using stagehand::test::shortened_stride;

std::string describe(const Case& c, double fraction, double ratio) {
    return std::to_string(c.units.size()) + " units, " + std::to_string(c.trace.size()) + " uses, budget " +
           std::to_string(fraction) + ", compute/copy " + std::to_string(ratio);
}

// Makes a plan and checks that it runs within the budget and that its figures are right.
Plan checked_plan(const Case& c) {
    Problem problem = c.problem();
    auto answer = make_plan(problem);
    if (!std::holds_alternative<Plan>(answer)) {
        ADD_FAILURE() << "infeasible";
        return {};
    }
    Plan plan = std::get<Plan>(answer);
    EXPECT_LE(plan.resident_pages + plan.ring_pages, c.budget_pages);
    uint64_t resident = 0;
    for (size_t u = 0; u < plan.units.size(); u++) {
        resident += plan.units[u].resident_pages;
        if (c.units[u].whole) {
            EXPECT_TRUE(plan.units[u].resident_pages == 0 || plan.units[u].streamed_pages == 0);
        }
    }
    EXPECT_EQ(plan.resident_pages, resident);
    auto simulation = simulate(problem, plan, 600);
    if (!simulation) {
        ADD_FAILURE() << "the plan does not run";
        return plan;
    }
    EXPECT_EQ(simulation->bytes_per_step, plan.bytes_per_step);
    EXPECT_NEAR(simulation->step_ns, plan.step_ns, 1e-6 * plan.step_ns);
    EXPECT_GE(plan.step_ns, least_step_ns(problem) * (1 - 1e-6));
    EXPECT_GE(plan.bytes_per_step, least_bytes(problem));
    return plan;
}

// No plan of whole pages copies fewer bytes in a step of this length, if the step uses each unit once and the budget
// lacks pages. Resident pages and the ring fit into the budget, so the other pages are as many as the budget lacks and
// the ring has. A page comes in each step unless it has a page of the ring for itself. If R pages of the ring are
// shared, as many pages come as the budget lacks, and R more. Each copy brings at most R of them, and one unit's end.
uint64_t least_bytes_of_pages(const Case& c, double step_ns) {
    const uint64_t lacking = Shape(c.problem()).total_pages - c.budget_pages;
    std::vector<uint64_t> ends;
    for (const Unit& unit : c.units) ends.push_back((unit.bytes - 1) % c.page_bytes + 1);
    std::ranges::sort(ends);
    uint64_t least = UINT64_MAX;
    for (uint64_t copies = 2; copies <= lacking + 1; copies++) {
        const uint64_t pages = lacking + (lacking + copies - 2) / (copies - 1);
        const size_t with_end = std::min({copies, pages, ends.size()});
        const uint64_t bytes = std::accumulate(ends.begin(), ends.begin() + static_cast<long>(with_end),
                                               (pages - with_end) * c.page_bytes);
        if (static_cast<double>(copies * c.latency_ns) + static_cast<double>(bytes) / c.link <= step_ns)
            least = std::min(least, bytes);
    }
    return least;
}

// A budget of a small model's bytes lacks only the pages that padding takes. A copy costs more for itself than for a
// few pages, so the best are few copies of many pages if the computing is short, and many of few bytes if it hides
// them.
TEST(Plan, AModelThatLacksItsPaddingStreamsLittle) {
    std::mt19937 random(1);
    Case c;
    c.page_bytes = 4096;
    c.link = 10;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < 204; i++) {
        c.units.push_back({8192 + random() % 170000});
        c.trace.push_back({i, 0});
        bytes += c.units[i].bytes;
    }
    c.budget_pages = bytes / c.page_bytes;
    const auto all = static_cast<double>(bytes);
    const struct {
        double compute_ns;
        uint64_t latency_ns;
        double step, part;  // of the computing, and of the bytes
    } targets[] = {
        {1e5, 0, 1.002, 0.0062}, {1e5, 2000, 1.001, 0.023},  {1e5, 5000, 1.001, 0.029},  {1e5, 10000, 1.1, 0.031},
        {3e5, 0, 1.001, 0.0062}, {3e5, 2000, 1.002, 0.0066}, {3e5, 5000, 1.002, 0.017},  {3e5, 10000, 1.002, 0.024},
        {1e6, 0, 1.001, 0.0062}, {1e6, 2000, 1.001, 0.0064}, {1e6, 5000, 1.003, 0.0066}, {1e6, 10000, 1.002, 0.012},
    };
    for (const auto& [compute_ns, latency_ns, step, part] : targets) {
        SCOPED_TRACE(std::to_string(compute_ns) + " ns, each copy " + std::to_string(latency_ns) + " ns");
        c.latency_ns = latency_ns;
        for (Use& use : c.trace)
            use.compute_ns = static_cast<uint64_t>(compute_ns * static_cast<double>(c.units[use.unit].bytes) / all);
        const Plan plan = checked_plan(c);
        EXPECT_LE(plan.step_ns, step * compute_ns);
        EXPECT_LE(static_cast<double>(plan.bytes_per_step), part * all);
        const uint64_t least = least_bytes_of_pages(c, plan.step_ns);
        EXPECT_GE(plan.bytes_per_step, least);
        EXPECT_LE(static_cast<double>(plan.bytes_per_step), 1.6 * static_cast<double>(least));
    }
}

TEST(Plan, EightBillionIsNearTheBounds) {
    Case c = eight_billion();
    const struct { double ratio, most; } targets[] = {{0.25, 1.07}, {1, 1.14}, {4, 1.005}};
    uint64_t number = 0;
    for (double fraction : {0.25, 0.5, 0.75, 0.9})
        for (auto [ratio, most] : targets)
            for (Compute how : {Compute::equal, Compute::by_size}) {
                if (!in_sample(number++)) continue;
                SCOPED_TRACE(describe(c, fraction, ratio));
                c.set_budget(fraction);
                c.set_compute(ratio, how);
                Plan plan = checked_plan(c);
                EXPECT_LE(plan.step_ns, most * std::max(c.compute_ns(), c.copy_ns()));
                EXPECT_LE(static_cast<double>(plan.bytes_per_step), 1.07 * c.copy_ns() * c.link);
                // Nothing could be much better.
                EXPECT_LE(plan.step_ns, 1.01 * least_step_ns(c.problem()));
            }
}

TEST(Plan, ForwardThenBackwardIsNearTheBounds) {
    Case c = eight_billion();
    c.forward_backward();
    uint64_t number = 0;
    for (double fraction : {0.25, 0.5, 0.75, 0.9})
        for (double ratio : {0.25, 1.0, 4.0})
            for (Compute how : {Compute::equal, Compute::by_size}) {
                if (!in_sample(number++)) continue;
                SCOPED_TRACE(describe(c, fraction, ratio));
                c.set_budget(fraction);
                c.set_compute(ratio, how);
                Plan plan = checked_plan(c);
                EXPECT_LE(plan.step_ns, 1.006 * least_step_ns(c.problem()));
                EXPECT_LE(static_cast<double>(plan.bytes_per_step), 1.006 * c.copy_ns() * c.link);
            }
}

TEST(Plan, ManyUnequalUnitsRunAtTheSpeedOfTheSlower) {
    uint64_t number = 0;
    for (double fraction : {0.25, 0.5, 0.75})
        for (double ratio : {0.25, 1.0, 4.0})
            for (Compute how : {Compute::equal, Compute::by_size, Compute::random})
                for (bool backward : {false, true}) {
                    if (!in_sample(number++)) continue;
                    Case c = unequal(400, 21);
                    if (backward) c.forward_backward();
                    SCOPED_TRACE(describe(c, fraction, ratio));
                    c.set_budget(fraction);
                    c.set_compute(ratio, how, 22);
                    Plan plan = checked_plan(c);
                    double copying = static_cast<double>(plan.bytes_per_step) / c.link;
                    EXPECT_LE(plan.step_ns, 1.03 * std::max(c.compute_ns(), copying));
                    EXPECT_LE(plan.step_ns, 1.03 * simple_step_ns(c.problem()));
                }
}

TEST(Plan, KeepsWhatIsUsedAgainAndAgain) {
    // Unit 0 between any two others: streaming it would copy it each time.
    for (uint32_t count : {34u, 8000u}) {
        Case c;
        c.page_bytes = 2 * MiB;
        c.units.assign(count, {40 * MiB});
        for (uint32_t u = 1; u < count; u++) {
            c.trace.push_back({0, 1000});
            c.trace.push_back({u, 1000});
        }
        c.set_budget(0.4);
        double copies = static_cast<double>(c.bytes() - c.budget_pages * c.page_bytes);
        Plan plan = std::get<Plan>(make_plan(c.problem()));
        EXPECT_EQ(0u, plan.units[0].streamed_pages);
        EXPECT_LE(static_cast<double>(plan.bytes_per_step), 1.06 * copies);
    }
}

TEST(Plan, RunsAtEveryBudgetDownToTheSmallest) {
    for (uint32_t held = 1; held <= 3; held++)
        for (bool backward : {false, true}) {
            Case c = eight_billion();
            if (backward) c.forward_backward();
            c.max_held = held;
            c.latency_ns = 10'000;
            const uint64_t smallest = smallest_budget(c.problem()).smallest_budget_pages;
            c.set_budget(0);
            c.set_compute(1, Compute::by_size);
            double serial = c.compute_ns() + c.copy_ns() + static_cast<double>(4 * c.trace.size() * c.latency_ns);
            for (uint64_t budget = smallest; budget <= 252 * held; budget += shortened_stride(27)) {
                SCOPED_TRACE(budget);
                c.budget_pages = budget;
                EXPECT_LE(checked_plan(c).step_ns, serial);
            }
            c.budget_pages = smallest - 1;
            auto answer = make_plan(c.problem());
            ASSERT_TRUE(std::holds_alternative<Infeasible>(answer));
            EXPECT_EQ(smallest, std::get<Infeasible>(answer).smallest_budget_pages);
            EXPECT_TRUE(std::get<Infeasible>(answer).unit == 0 || std::get<Infeasible>(answer).unit == 33);
        }
}

TEST(Plan, SmallProblemsOfEveryKindRunAtEveryBudget) {
    std::mt19937 random(23);
    for (uint64_t k = 0; k < shortened(80); k++) {
        Case c = small_random(random, 6, 4);
        const uint64_t smallest = smallest_budget(c.problem()).smallest_budget_pages;
        double before = 0;
        for (uint64_t budget = smallest ? smallest - 1 : 0; budget <= c.pages(); budget++) {
            SCOPED_TRACE("instance " + std::to_string(k) + ", budget " + std::to_string(budget));
            c.budget_pages = budget;
            if (budget < smallest) {
                EXPECT_TRUE(std::holds_alternative<Infeasible>(make_plan(c.problem())));
                continue;
            }
            Plan plan = checked_plan(c);
            // More memory is never worse, but for what trading time for bytes takes and what the search
            // misses.
            if (before > 0) {
                EXPECT_LE(plan.step_ns, before * 1.02);
            }
            before = plan.step_ns;
        }
    }
}

TEST(Plan, IsTheSameEachTime) {
    Case c = unequal(60, 24);
    c.set_budget(0.4);
    c.set_compute(1, Compute::random);
    Plan a = checked_plan(c), b = checked_plan(c);
    EXPECT_EQ(a.ring_pages, b.ring_pages);
    EXPECT_EQ(a.step_ns, b.step_ns);
    for (size_t u = 0; u < a.units.size(); u++) {
        EXPECT_EQ(a.units[u].streamed_pages, b.units[u].streamed_pages);
        EXPECT_EQ(a.units[u].ring_offset, b.units[u].ring_offset);
    }
}

TEST(Plan, RefusesMalformedProblems) {
    auto refused = [](const Case& c) {
        auto answer = make_plan(c.problem());
        return std::holds_alternative<Infeasible>(answer) &&
               std::get<Infeasible>(answer).smallest_budget_pages == UINT64_MAX;
    };
    Case good = eight_billion();
    good.budget_pages = 500;
    EXPECT_FALSE(refused(good));
    Case c = good;
    c.page_bytes = 0;
    EXPECT_TRUE(refused(c));
    c = good;
    for (double link : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
        c.link = link;
        EXPECT_TRUE(refused(c)) << link;
    }
    c = good;
    c.trace.push_back({34, 0});
    EXPECT_TRUE(refused(c));
    c = good;
    c.units[3].bytes = UINT64_MAX;
    c.page_bytes = 1;
    EXPECT_TRUE(refused(c));
}

TEST(Plan, ALargeProblemIsPlannedWell) {
    // 10^5 units; how long that takes is the benchmark's business.
    Case c = unequal(static_cast<uint32_t>(shortened(100'000)), 25);
    c.set_budget(0.5);
    c.set_compute(0.25, Compute::random);
    Problem problem = c.problem();
    Plan plan = std::get<Plan>(make_plan(problem));
    EXPECT_LE(plan.resident_pages + plan.ring_pages, c.budget_pages);
    EXPECT_LE(plan.step_ns, 1.005 * c.copy_ns());
    auto simulation = simulate(problem, plan, 10);
    ASSERT_TRUE(simulation);
    EXPECT_NEAR(simulation->step_ns, plan.step_ns, 1e-3 * plan.step_ns);
}

}  // namespace
}  // namespace stagehand::policy::test
