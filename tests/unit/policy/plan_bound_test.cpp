// The bound of plans: the least over all choices of pages that are kept, and what the size of a page costs.
#include <gtest/gtest.h>

#include <limits>

#include "policy/bounds.h"
#include "policy/plan_bound.h"
#include "policy/shape.h"
#include "problems.h"

namespace stagehand::policy::test {
namespace {

// Tries every number of pages that each unit keeps.
class ByTrying {
public:
    explicit ByTrying(const Problem& problem) : problem_(problem), shape_(problem), kept_(shape_.order.size()) {}

    double least_ns() {
        choose(0, 0);
        return std::max(least_, shape_.compute_ns);
    }

private:
    void choose(size_t k, uint64_t kept) {
        if (kept >= problem_.budget_pages) return;
        if (k < kept_.size()) {
            for (kept_[k] = 0; kept_[k] <= shape_.pages[shape_.order[k]]; kept_[k]++) choose(k + 1, kept + kept_[k]);
            return;
        }
        const double page = static_cast<double>(problem_.page_bytes);
        const double turning = static_cast<double>(problem_.budget_pages - kept) * page;
        double bytes = static_cast<double>(shape_.total_bytes) - static_cast<double>(kept) * page;
        for (size_t i = 0; i < kept_.size(); i++) {
            const uint32_t u = shape_.order[i];
            const double part = (shape_.pages[u] - static_cast<double>(kept_[i])) * page;
            if (part > turning) return;
            bytes += std::max(0.0, shape_.unit_compute_ns[u] * problem_.link_bytes_per_ns + part - turning);
        }
        least_ = std::min(least_, bytes / problem_.link_bytes_per_ns);
    }

    const Problem problem_;
    const Shape shape_;
    std::vector<uint64_t> kept_;
    double least_ = std::numeric_limits<double>::infinity();
};

TEST(PlanBound, IsTheLeastOverAllPagesThatMayBeKept) {
    std::mt19937 random(41);
    int compared = 0, sharper = 0;
    while (compared < 300) {
        Case c = small_random(random, 5, 4);
        c.forward();
        for (Unit& unit : c.units) unit.whole = false;
        c.link = 0.5 + random() % 4;
        const double scale = std::pow(10.0, (random() % 200 - 100.0) / 100);
        for (Use& use : c.trace)
            use.compute_ns = static_cast<uint64_t>(1 + scale * static_cast<double>(random() % 4000));
        const uint64_t smallest = smallest_budget(c.problem()).smallest_budget_pages;
        if (smallest >= c.pages()) continue;
        c.budget_pages = smallest + random() % (c.pages() - smallest);
        const Problem problem = c.problem();
        const double any = least_step_ns(problem), expected = std::max(any, ByTrying(problem).least_ns());
        ASSERT_NEAR(least_plan_ns(problem), expected, 1e-6 * expected) << "instance " << compared;
        sharper += expected > any * 1.01;
        compared++;
    }
    EXPECT_GT(sharper, 60);
}

// The last part of a model does not fit, and few pages turn over: the larger they are, the longer is a step.
TEST(PlanBound, CountsWholePages) {
    double before = 0;
    for (const uint64_t page : {2 * MiB, 16 * MiB, 32 * MiB}) {
        Case c;
        c.page_bytes = page;
        c.units.push_back({1050 * MiB});
        for (int i = 0; i < 20; i++) c.units.push_back({423 * MiB});
        c.units.push_back({1050 * MiB});
        c.forward();
        c.set_budget(0.85);
        c.set_compute(1, Compute::equal);
        const double ratio = least_plan_ns(c.problem()) / simple_step_ns(c.problem());
        EXPECT_GE(ratio, least_step_ns(c.problem()) / simple_step_ns(c.problem()));
        EXPECT_GE(ratio, before);
        before = ratio;
        const auto made = make_plan(c.problem());
        EXPECT_GE(std::get<Plan>(made).step_ns, least_plan_ns(c.problem()));
        RecordProperty("pages of " + std::to_string(page / MiB),
                       std::to_string(ratio) + ", reached " +
                           std::to_string(std::get<Plan>(made).step_ns / simple_step_ns(c.problem())));
    }
    EXPECT_NEAR(before, 1.14, 0.001);
}

// Many units take the bound that holds for any policy, in the end.
TEST(PlanBound, LargeProblemsAreNotSearchedForLong) {
    Case c = unequal(50'000, 3);
    c.set_budget(0.5);
    for (Use& use : c.trace) use.compute_ns = 1 + use.unit * 7 % 300'000;
    EXPECT_GE(least_plan_ns(c.problem()), least_step_ns(c.problem()));
}

}  // namespace
}  // namespace stagehand::policy::test
