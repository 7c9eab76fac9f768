// Compares the search with every choice of parts and ring, page by page, on small random problems.
#include <gtest/gtest.h>

#include <limits>

#include "../../stress/scale.h"
#include "policy/bounds.h"
#include "policy/evaluator.h"
#include "policy/local_moves.h"
#include "policy/plan_bound.h"
#include "problems.h"

namespace stagehand::policy::test {
namespace {

using stagehand::test::shortened;

class BruteForce {
public:
    explicit BruteForce(const Shape& shape) : shape_(shape), evaluator_(shape, 64) {
        candidate_.parts.resize(shape.pages.size());
    }

    // The shortest step over all parts, all rings that the budget leaves, and all layouts.
    double shortest() {
        choose(0, 0, 0);
        return shortest_;
    }

private:
    void choose(size_t k, uint64_t resident, uint64_t streamed) {
        if (resident > shape_.problem->budget_pages) return;
        if (k < shape_.order.size()) {
            uint32_t u = shape_.order[k];
            uint32_t step = shape_.problem->units[u].whole ? shape_.pages[u] : 1;
            for (uint32_t part = 0; part <= shape_.pages[u]; part += step) {
                candidate_.parts[u] = part;
                choose(k + 1, resident + shape_.pages[u] - part, streamed + part);
            }
            return;
        }
        uint64_t most = std::min(shape_.problem->budget_pages - resident, streamed);
        uint64_t least = std::max<uint64_t>(1, widest_window(shape_, candidate_.parts).pages);
        for (uint64_t ring = least; ring <= most; ring++) {
            candidate_.ring = static_cast<uint32_t>(ring);
            for (Layout layout : {Layout::packed, Layout::spread, Layout::rotating, Layout::two_ended}) {
                if (shape_.held == 1 && layout == Layout::rotating) break;
                candidate_.layout = layout;
                if (std::optional<Cost> cost = evaluator_.cost(candidate_))
                    shortest_ = std::min(shortest_, cost->step_ns);
            }
        }
    }

    const Shape& shape_;
    Evaluator evaluator_;
    Candidate candidate_;
    double shortest_ = std::numeric_limits<double>::infinity();
};

void compare(uint32_t seed, uint64_t count, uint32_t most_units, uint32_t most_pages, bool gaps = false,
             bool slow_sources = false, double most = 1.01) {
    std::mt19937 random(seed);
    uint64_t compared = 0;
    while (compared < shortened(count)) {
        Case c = small_random(random, most_units, most_pages);
        if (gaps) c.add_gaps(random);
        if (slow_sources) c.add_slow_sources(random);
        const uint64_t smallest = smallest_budget(c.problem()).smallest_budget_pages;
        c.budget_pages = smallest;
        uint64_t pages = Shape(c.problem()).total_pages;
        if (smallest >= pages) continue;
        c.budget_pages = smallest + random() % (pages - smallest);
        Problem problem = c.problem();
        double best = BruteForce(Shape(problem)).shortest();
        ASSERT_GE(best, least_plan_ns(problem) * (1 - 1e-9)) << "instance " << compared << " of seed " << seed;
        auto answer = make_plan(problem);
        ASSERT_TRUE(std::holds_alternative<Plan>(answer));
        EXPECT_LE(std::get<Plan>(answer).step_ns, most * best)
            << "instance " << compared << " of seed " << seed << ": " << c.units.size() << " units, " << c.trace.size()
            << " uses, " << c.max_held << " held, budget " << c.budget_pages << " of " << pages << " pages";
        compared++;
    }
}

TEST(BruteForce, TinyProblemsAreSolved) { compare(31, 600, 4, 4); }

// Here only the trial of all parts finds some of the best plans.
TEST(BruteForce, TinyProblemsOfSinglePagesAreSolved) { compare(106, 200, 6, 1); }

TEST(BruteForce, TinyProblemsWithGapsAreSolved) { compare(35, 200, 4, 4, true); }

TEST(BruteForce, TinyProblemsWithSlowSourcesAreSolved) {
    compare(36, 200, 4, 4, false, true);
    compare(37, 100, 4, 4, true, true, 1.05);
}

// Too many combinations for the planner to try them all.
TEST(BruteForce, SmallProblemsAreSolvedAlmost) {
    compare(32, 60, 6, 5);
    compare(33, 30, 4, 12);
}

}  // namespace
}  // namespace stagehand::policy::test
