// The simulation of a training step: small steps worked out by hand, and random steps against a slow simulation.
#include <gtest/gtest.h>

#include "activations/evaluator.h"
#include "reference_step.h"
#include "training_steps.h"

namespace stagehand::activations::test {
namespace {

constexpr Fate keep = Fate::keep, spill = Fate::spill, recompute = Fate::recompute;
constexpr uint64_t no_target = UINT64_MAX;

// Three storages of 1000 bytes, saved at 0, 1000 and 2000 and used from 4000, 5000 and 6000 on, the last one first.
// Each copy takes 1000 ns. The backward begins at 3000, and the step ends at 7000.
RecordedStep three() {
    RecordedStep step;
    step.add(1000, 0, 6000, 7000);
    step.add(1000, 1000, 5000, 6000);
    step.add(1000, 2000, 4000, 5000);
    step.set_link(1, 1);
    step.limits.forward_end_ns = 3000;
    step.limits.end_ns = 7000;
    return step;
}

ActivationCost cost_of(const RecordedStep& step, std::vector<Fate> fates, uint64_t target = no_target) {
    const std::optional<ActivationCost> cost = activation_cost(step.step(), fates, target);
    EXPECT_TRUE(cost);
    return cost.value_or(ActivationCost{});
}

TEST(ActivationCost, TheMemoryOverTheStep) {
    RecordedStep step = three();
    step.others = {{0, 100}, {4500, 50}};
    const auto simulated = simulate_activations(step.step(), std::vector<Fate>{spill, keep, keep}, no_target);
    // The first one leaves from 0 to 1000, when the second one is saved. It is restored from 3000 on.
    const std::vector<std::pair<uint64_t, uint64_t>> wanted = {{0, 1100},    {1000, 1100}, {2000, 2100}, {3000, 3100},
                                                               {4500, 3050}, {5000, 2050}, {6000, 1050}, {7000, 50}};
    std::vector<std::pair<uint64_t, uint64_t>> points;
    for (const MemoryPoint& point : simulated->memory) points.emplace_back(point.ns, point.bytes);
    EXPECT_EQ(points, wanted);
    EXPECT_EQ(simulated->cost.peak_bytes, 3100u);
    EXPECT_FALSE(simulate_activations(step.step(), std::vector<Fate>{keep}, no_target));
}

TEST(ActivationCost, ImpossibleFatesAndMalformedStepsAreRefused) {
    RecordedStep step = three();
    const std::vector<Fate> all_kept(3, keep);
    auto refused = [&](std::vector<Fate> fates) { return !activation_cost(step.step(), fates, no_target); };
    EXPECT_FALSE(refused(all_kept));
    EXPECT_TRUE(refused({keep, keep})) << "one is missing";
    EXPECT_TRUE(refused({keep, keep, recompute})) << "not cheap";
    step.limits.least_spill_bytes = 1001;
    EXPECT_TRUE(refused({spill, keep, keep})) << "too small";
    step = three();
    step.limits.to_device.weight_bytes_per_ns = 1;
    EXPECT_TRUE(refused({spill, keep, keep})) << "no link is left";
    EXPECT_FALSE(refused(all_kept));

    auto malformed = [&](auto change) {
        step = three();
        change(step);
        return refused(all_kept) && !fastest_activations(step.step(), 0) && !leanest_activations(step.step(), 0);
    };
    EXPECT_TRUE(malformed([](RecordedStep& s) { s.storages[0].produced_ns = 1001; })) << "not in order";
    EXPECT_TRUE(malformed([](RecordedStep& s) { s.storages[0].first_use_ns = 7001; })) << "used after it is freed";
    EXPECT_TRUE(malformed([](RecordedStep& s) { s.storages[0].released_ns = 6001; })) << "released after its use";
    EXPECT_TRUE(malformed([](RecordedStep& s) { s.limits.end_ns = 6999; })) << "used after the end";
    EXPECT_TRUE(malformed([](RecordedStep& s) { s.limits.forward_end_ns = 7001; }));
    EXPECT_TRUE(malformed([](RecordedStep& s) { s.others = {{5, 0}, {4, 0}}; }));
    EXPECT_TRUE(malformed([](RecordedStep& s) { s.recompute(1, {3}); })) << "no such input";
    EXPECT_TRUE(malformed([](RecordedStep& s) { s.recompute(1, {2}); })) << "its own input";
    EXPECT_TRUE(malformed([](RecordedStep& s) { s.storages[1].bytes = UINT64_MAX; })) << "sums would overflow";
    EXPECT_TRUE(malformed([](RecordedStep& s) { s.limits.to_host.bytes_per_ns = std::nan(""); }));
    EXPECT_FALSE(malformed([](RecordedStep& s) { s.recompute(1, {0, 0, 1}); }));
}

TEST(ActivationCost, AStepThatSavesNothingHasACost) {
    RecordedStep step;
    step.limits.end_ns = 10;
    EXPECT_EQ(cost_of(step, {}).step_ns, 10);
    EXPECT_EQ(fastest_activations(step.step(), 0)->cost.peak_bytes, 0u);
    EXPECT_EQ(leanest_activations(step.step(), 10)->cost.step_ns, 10);
}

TEST(ActivationCost, IsThatOfTheSlowSimulation) {
    std::mt19937 random(41);
    for (int instance = 0; instance < 1500; instance++) {
        const RecordedStep recorded = random_step(random, 9);
        const TrainingStep step = recorded.step();
        const ActivationTimeline timeline(step);
        ActivationEvaluator evaluator(timeline);
        std::vector<Fate> fates(timeline.storages());
        for (int choice = 0; choice < 4; choice++) {
            for (uint32_t i = 0; i < fates.size(); i++) do
                    fates[i] = static_cast<Fate>(random() % 3);
                while (!timeline.possible(i, fates[i]));
            const uint64_t settled = evaluator.settled_peak(fates);
            const uint64_t target = random() % 5 == 0 ? UINT64_MAX / 4 : settled * (90 + random() % 100) / 100;
            const ActivationCost found = evaluator.cost(fates, target);
            const ActivationCost expected = ReferenceStep(timeline, fates, target).run();
            ASSERT_NEAR(found.step_ns, expected.step_ns, 1e-9 * expected.step_ns) << "instance " << instance;
            ASSERT_EQ(found.peak_bytes, expected.peak_bytes) << "instance " << instance;
            ASSERT_EQ(found.spilled_bytes, expected.spilled_bytes) << "instance " << instance;
            ASSERT_EQ(found.recomputed_bytes, expected.recomputed_bytes) << "instance " << instance;
            EXPECT_EQ(found.peak_bytes <= target, settled <= target) << "instance " << instance;
        }
    }
}

}  // namespace
}  // namespace stagehand::activations::test
