// Plans for units that each use changes: what is written back delays the pages, not the copies of others.
#include <gtest/gtest.h>

#include "policy/bounds.h"
#include "policy/recurrence.h"
#include "problems.h"

namespace stagehand::policy::test {
namespace {

constexpr uint64_t kUnits = 32, kPages = 52;

Case changed_units(double budget, double compute_per_copy, double back_speed) {
    Case c;
    c.back = c.link * back_speed;
    c.latency_ns = 10'000;
    for (uint32_t k = 0; k < kUnits; k++) {
        c.units.push_back({kPages * c.page_bytes});
        c.units.back().changes = true;
        const double copy_ns = static_cast<double>(kPages * c.page_bytes) / c.link;
        c.trace.push_back({k, static_cast<uint64_t>(compute_per_copy * copy_ns)});
    }
    c.budget_pages = static_cast<uint64_t>(budget * static_cast<double>(c.pages()));
    return c;
}

double step_ns(const Problem& problem) { return std::get<Plan>(make_plan(problem)).step_ns; }

TEST(ChangedUnits, are_copied_in_both_directions_at_once) {
    for (const double budget : {0.25, 0.5, 0.75}) {
        for (const double compute : {0.0, 0.3}) {
            const Case c = changed_units(budget, compute, 1);
            const double bound = least_step_ns(c.problem());
            EXPECT_LT(step_ns(c.problem()), 1.1 * bound) << "budget " << budget << ", compute " << compute;
        }
    }
}

TEST(ChangedUnits, take_as_long_as_the_slower_direction) {
    const Case c = changed_units(0.25, 0, 0.5);
    const double bound = least_step_ns(c.problem());
    const double step = step_ns(c.problem());
    EXPECT_GT(step, 1.9 * bound);
    EXPECT_LT(step, 2.2 * bound);
}

TEST(ChangedUnits, cost_nothing_where_computing_hides_them) {
    const Case changed = changed_units(0.5, 2, 1);
    Case fixed = changed;
    for (Unit& unit : fixed.units) unit.changes = false;
    EXPECT_LT(step_ns(changed.problem()), 1.01 * step_ns(fixed.problem()));
}

// What a plan promises is what its simulation shows.
TEST(ChangedUnits, have_plans_that_keep_their_promise) {
    std::mt19937 random(5);
    int plans = 0;
    for (int k = 0; k < 200; k++) {
        Case c = small_random(random, 6, 7);
        c.add_changes(random);
        c.budget_pages = c.pages() / 2;
        const auto made = make_plan(c.problem());
        const auto* const plan = std::get_if<Plan>(&made);
        if (!plan) continue;
        plans++;
        const auto simulated = simulate(c.problem(), *plan, 64);
        ASSERT_TRUE(simulated) << k;
        EXPECT_NEAR(simulated->step_ns, plan->step_ns, 0.02 * plan->step_ns) << k;
    }
    EXPECT_GT(plans, 50);
}

}  // namespace
}  // namespace stagehand::policy::test
