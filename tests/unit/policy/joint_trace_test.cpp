// The trace that stands for several orders: a plan for it runs each of them, in any turn.
#include <gtest/gtest.h>

#include "../../stress/scale.h"
#include "policy/bounds.h"
#include "policy/joint_trace.h"
#include "policy/recurrence.h"
#include "policy/shape.h"
#include "problems.h"

namespace stagehand::policy::test {
namespace {

using stagehand::test::shortened;

TEST(JointTrace, OfOneOrderIsThatOrder) {
    for (const uint32_t held : {1u, 3u}) {
        const std::vector<std::vector<Use>> one = {{{2, 10}, {0, 20}}};
        const JointTrace joint = join_orders(one, held);
        EXPECT_EQ(joint.steps, 1u);
        ASSERT_EQ(joint.trace.size(), 2u);
        EXPECT_EQ(joint.trace[0].unit, 2u);
        EXPECT_EQ(joint.trace[1].compute_ns, 20u);
    }
}

// Random orders over the same units: units left out, ending early, or backwards.
TEST(JointTrace, LeavesRoomForEachOrder) {
    std::mt19937 random(44);
    for (uint64_t compared = 0; compared < shortened(300);) {
        Case c = small_random(random, 6, 6);
        c.max_held = 1 + random() % 3;
        std::vector<std::vector<Use>> orders = {c.trace, c.trace};
        if (const uint32_t way = random() % 3; way == 0)
            orders[1].resize(1 + random() % c.trace.size());
        else if (way == 1)
            orders[1].erase(orders[1].begin() + static_cast<long>(random() % c.trace.size()));
        else
            std::ranges::reverse(orders[1]);
        if (orders[1].empty()) continue;
        const JointTrace joint = join_orders(orders, c.max_held);
        c.trace = joint.trace;
        const uint64_t smallest = smallest_budget(c.problem()).smallest_budget_pages;
        const uint64_t pages = Shape(c.problem()).total_pages;
        if (smallest >= pages) continue;
        c.budget_pages = smallest + random() % (pages - smallest);
        compared++;
        const auto made = make_plan(c.problem());
        ASSERT_TRUE(std::holds_alternative<Plan>(made)) << "instance " << compared;
        const Plan& plan = std::get<Plan>(made);
        EXPECT_LE(plan.resident_pages + plan.ring_pages, c.budget_pages);
        EXPECT_GE(plan.step_ns, least_step_ns(c.problem()) * 0.999);
        for (const auto& turns : {std::vector<size_t>{0, 0, 1, 1}, {0, 1}, {0, 1, 1, 0, 1}}) {
            std::vector<Use> steps;
            for (const size_t turn : turns) steps.insert(steps.end(), orders[turn].begin(), orders[turn].end());
            Problem problem = c.problem();
            problem.trace = steps;
            EXPECT_TRUE(simulate(problem, plan, 8)) << "instance " << compared;
        }
    }
}

}  // namespace
}  // namespace stagehand::policy::test
