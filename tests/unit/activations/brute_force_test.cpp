// Compares the activation planner with every choice of fates, on small random steps.
#include <gtest/gtest.h>

#include "../../stress/scale.h"
#include "activations/bounds.h"
#include "activations/evaluator.h"
#include "training_steps.h"

namespace stagehand::activations::test {
namespace {

using stagehand::test::shortened;
using stagehand::test::whole_length;

// All choices of a step, and what they reach.
class AllFates {
public:
    explicit AllFates(const RecordedStep& recorded)
        : step_(recorded.step()), timeline_(step_), evaluator_(timeline_), fates_(timeline_.storages(), Fate::keep) {}

    uint64_t least_peak() {
        uint64_t least = UINT64_MAX;
        for_each([&] { least = std::min(least, evaluator_.settled_peak(fates_)); });
        return least;
    }

    double least_ns(uint64_t target) {
        double least = std::numeric_limits<double>::infinity();
        for_each([&] {
            const ActivationCost cost = evaluator_.cost(fates_, target);
            if (cost.peak_bytes <= target) least = std::min(least, cost.step_ns);
        });
        return least;
    }

    uint64_t least_peak_within(double target_ns, uint64_t plain_peak) {
        uint64_t works = plain_peak;
        auto in_time = [&](uint64_t target) {
            const ActivationCost cost = evaluator_.cost(fates_, target);
            return cost.peak_bytes <= target && cost.step_ns <= target_ns;
        };
        for_each([&] {
            uint64_t fails = evaluator_.settled_peak(fates_) - 1;
            if (fails + 1 >= works || !in_time(works - 1)) return;
            for (works--; works > fails + 1;) {
                const uint64_t middle = fails + (works - fails) / 2;
                (in_time(middle) ? works : fails) = middle;
            }
        });
        return works;
    }

private:
    template <typename Look>
    void for_each(Look look) {
        std::fill(fates_.begin(), fates_.end(), Fate::keep);
        for (uint32_t k = 0; k < fates_.size();) {
            look();
            for (k = 0; k < fates_.size() && !next(k); k++) {
            }
        }
    }
    // Counts up one digit. False if it starts again.
    bool next(uint32_t storage) {
        Fate& fate = fates_[storage];
        if (fate == Fate::keep && timeline_.possible(storage, Fate::spill))
            fate = Fate::spill;
        else if (fate != Fate::recompute && timeline_.possible(storage, Fate::recompute))
            fate = Fate::recompute;
        else
            fate = Fate::keep;
        return fate != Fate::keep;
    }

    TrainingStep step_;
    ActivationTimeline timeline_;
    ActivationEvaluator evaluator_;
    std::vector<Fate> fates_;
};

TEST(ActivationBruteForce, NoChoiceIsMuchFaster) {
    std::mt19937 random(51);
    double sum = 0;
    uint64_t compared = 0;
    while (compared < shortened(300)) {
        const RecordedStep recorded = random_step(random, 8);
        const uint64_t plain = recorded.plain_peak(), least = AllFates(recorded).least_peak();
        if (least == plain) continue;
        const uint64_t target = least + random() % (plain - least);
        const double best = AllFates(recorded).least_ns(target);
        const auto plan = fastest_activations(recorded.step(), target);
        ASSERT_TRUE(plan);
        EXPECT_LE(plan->cost.peak_bytes, target) << "instance " << compared << " can meet the target";
        EXPECT_LE(plan->cost.step_ns, 1.02 * best) << "instance " << compared;
        EXPECT_LE(plan->bound, best * (1 + 1e-9)) << "instance " << compared;
        EXPECT_EQ(activation_cost(recorded.step(), plan->fates, target)->step_ns, plan->cost.step_ns);
        sum += plan->cost.step_ns / best;
        compared++;
    }
    if (whole_length()) {
        EXPECT_LE(sum / static_cast<double>(compared), 1.001);
    }
}

TEST(ActivationBruteForce, NoChoiceHasAMuchLowerPeak) {
    std::mt19937 random(52);
    double sum = 0;
    uint64_t compared = 0;
    while (compared < shortened(50)) {
        const RecordedStep recorded = random_step(random, 6);
        const uint64_t plain = recorded.plain_peak();
        const double end = static_cast<double>(recorded.limits.end_ns);
        const double target = end * (1 + static_cast<double>(random() % 1000) / 2500);
        const uint64_t best = AllFates(recorded).least_peak_within(target, plain);
        if (best == plain) continue;
        const auto plan = leanest_activations(recorded.step(), target);
        ASSERT_TRUE(plan);
        EXPECT_LE(plan->cost.step_ns, target) << "instance " << compared;
        EXPECT_LE(static_cast<double>(plan->cost.peak_bytes), 1.02 * static_cast<double>(best))
            << "instance " << compared;
        EXPECT_LE(plan->bound, static_cast<double>(best)) << "instance " << compared;
        EXPECT_EQ(activation_cost(recorded.step(), plan->fates, plan->target_bytes)->step_ns, plan->cost.step_ns);
        sum += static_cast<double>(plan->cost.peak_bytes) / static_cast<double>(best);
        compared++;
    }
    if (whole_length()) {
        EXPECT_LE(sum / static_cast<double>(compared), 1.001);
    }
}

// The bounds alone, on more steps than the planner can be compared on.
TEST(ActivationBruteForce, NoChoiceIsBelowABound) {
    std::mt19937 random(53);
    for (uint64_t instance = 0; instance < shortened(1000); instance++) {
        const RecordedStep recorded = random_step(random, 6);
        const TrainingStep step = recorded.step();
        const ActivationTimeline timeline(step);
        const ActivationBounds bounds(timeline);
        const uint64_t plain = recorded.plain_peak(), least = AllFates(recorded).least_peak();
        const uint64_t target = least + random() % (plain - least + 1);
        const double best = AllFates(recorded).least_ns(target);
        EXPECT_LE(bounds.least_step_ns(target), best * (1 + 1e-9)) << "instance " << instance;
        EXPECT_LE(bounds.least_peak(best), target) << "instance " << instance;
        EXPECT_LE(bounds.least_peak(std::numeric_limits<double>::infinity()), least) << "instance " << instance;
        if (target > 0) {
            EXPECT_GE(bounds.least_step_ns(0), bounds.least_step_ns(target));
        }
    }
}

}  // namespace
}  // namespace stagehand::activations::test
