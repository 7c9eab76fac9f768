// Random moves alone, from the plan for the smallest budget, without the families of plans that a search begins with.
#include <gtest/gtest.h>

#include <variant>

#include "policy/bounds.h"
#include "policy/frontier.h"
#include "policy/layout.h"
#include "policy/local_moves.h"
#include "problems.h"

namespace stagehand::policy::test {
namespace {

// Returns by what part the step that the moves find is longer than that of the whole search.
double excess(const Problem& problem, uint64_t evaluations) {
    const Shape shape(problem);
    Evaluator evaluator(shape, 64);
    Frontier frontier;
    const TightRing tight = tightest_ring(shape);
    const Candidate start{shape.pages, tight.pages, tight.layout};
    frontier.offer(start, *evaluator.cost(start));
    LocalMoves(shape, evaluator, frontier).shorten(evaluations);
    return frontier.fastest().cost.step_ns / std::get<Plan>(make_plan(problem)).step_ns - 1;
}

// Half of the memory above the smallest budget is free. The first plan uses none of it, and small changes to this plan
// are far from the best plans.
TEST(LocalMoves, FindShortStepsFarFromTheirStart) {
    constexpr int count = 40;
    std::mt19937 random(7);
    double sum = 0;
    for (int instance = 0; instance < count;) {
        Case c = small_random(random, 6, 60);
        const uint64_t pages = Shape(c.problem()).total_pages;
        const uint64_t smallest = smallest_budget(c.problem()).smallest_budget_pages;
        if (smallest >= pages) continue;
        c.budget_pages = smallest + (pages - smallest) / 2;
        sum += excess(c.problem(), 256);
        instance++;
    }
    EXPECT_LT(sum / count, 0.15);
}

}  // namespace
}  // namespace stagehand::policy::test
