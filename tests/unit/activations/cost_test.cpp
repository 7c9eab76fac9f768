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

TEST(ActivationCost, WhatIsKeptCostsMemoryOnly) {
    const ActivationCost cost = cost_of(three(), {keep, keep, keep});
    EXPECT_EQ(cost.step_ns, 7000);
    EXPECT_EQ(cost.peak_bytes, 3000u);
    EXPECT_EQ(cost.spilled_bytes, 0u);
}

TEST(ActivationCost, ASpilledStorageIsGoneWhenItsCopyHasEnded) {
    const ActivationCost cost = cost_of(three(), {spill, keep, keep}, 2000);
    EXPECT_EQ(cost.step_ns, 7000);
    EXPECT_EQ(cost.peak_bytes, 2000u);
    EXPECT_EQ(cost.spilled_bytes, 1000u);
}

TEST(ActivationCost, TheComputeWaitsForCopiesIfMemoryIsShort) {
    RecordedStep step = three();
    step.set_link(0.5, 1000);  // the copy of the first one ends at 2000, that of the second one at 4000
    EXPECT_EQ(cost_of(step, {spill, keep, keep}, 2000).step_ns, 7000);
    EXPECT_EQ(cost_of(step, {keep, spill, keep}, 2000).step_ns, 8001)
        << "it leaves from 1000 to 3000, and there is room for it again when it is needed";
    step.limits.to_host = {1, 0.6};
    EXPECT_EQ(cost_of(step, {spill, keep, keep}, 2000).step_ns, 7500) << "weights stream there";
    step.limits.copy_latency_ns = 300;
    EXPECT_EQ(cost_of(step, {spill, keep, keep}, 2000).step_ns, 7800);
}

TEST(ActivationCost, ATargetThatCannotBeMetShowsInThePeak) {
    EXPECT_EQ(cost_of(three(), {keep, keep, keep}, 2000).peak_bytes, 3000u);
    EXPECT_EQ(cost_of(three(), {spill, spill, keep}, 500).peak_bytes, 1000u);
}

TEST(ActivationCost, TheForwardHoldsWhatItUses) {
    RecordedStep step = three();
    step.storages[0].released_ns = 2500;
    EXPECT_EQ(cost_of(step, {spill, keep, keep}, 2000).peak_bytes, 3000u);
    EXPECT_EQ(cost_of(step, {spill, keep, keep}, 2000).step_ns, 7000) << "no wait would help";
}

TEST(ActivationCost, AUseWaitsForItsRestore) {
    RecordedStep step = three();
    step.set_link(1, 0.25);  // the last one is back after 7000, the others 4000 ns later each
    EXPECT_EQ(cost_of(step, {keep, keep, spill}).step_ns, 10000);
    EXPECT_EQ(cost_of(step, {keep, spill, spill}).step_ns, 13000);
    EXPECT_EQ(cost_of(step, {spill, spill, spill}).step_ns, 16000);
    EXPECT_EQ(cost_of(step, {spill, keep, keep}).step_ns, 8000) << "it starts at the forward's end";
}

TEST(ActivationCost, ARestoreStartsAfterItsCopyToTheHost) {
    RecordedStep step = three();
    step.set_link(0.2, 1);  // ends at 5000, 6000, 7000
    EXPECT_EQ(cost_of(step, {keep, keep, spill}).step_ns, 7000 + 4000);
}

TEST(ActivationCost, ARestoreWaitsForMemory) {
    RecordedStep step = three();
    // The last one is freed at 5000. Only then is there room for the second one under 1000 bytes.
    EXPECT_EQ(cost_of(step, {spill, spill, spill}, 1000).step_ns, 7000 + 1000 + 1000);
    EXPECT_EQ(cost_of(step, {spill, spill, keep}, 2000).step_ns, 7000);
    // Memory that other things need later leaves no room either.
    step.others = {{0, 0}, {4500, 1000}, {4600, 0}};
    EXPECT_EQ(cost_of(step, {keep, spill, keep}, 4000).step_ns, 7000);
    EXPECT_EQ(cost_of(step, {keep, spill, keep}, 3999).step_ns, 7600) << "from 4600 on";
}

TEST(ActivationCost, NoMoreIsRestoredAheadThanAllowed) {
    RecordedStep step = three();
    step.limits.ahead_bytes = 1000;
    EXPECT_EQ(cost_of(step, {spill, spill, spill}).peak_bytes, 2000u);
    step.limits.ahead_bytes = 10;
    EXPECT_EQ(cost_of(step, {spill, spill, spill}).step_ns, 7000) << "one at a time is just in time";
    step.set_link(1, 0.5);
    EXPECT_EQ(cost_of(step, {spill, spill, spill}).step_ns, 7000 + 3 * 1000);
}

TEST(ActivationCost, TheComputeWaitsIfTooMuchIsInFlight) {
    RecordedStep step = three();
    step.set_link(0.25, 10);  // ends at 4000 and 8000
    step.limits.in_flight_bytes = 1999;
    EXPECT_EQ(cost_of(step, {spill, spill, keep}).step_ns, 7000 + 3000 + 100) << "gone at 8000, needed then";
    step.limits.in_flight_bytes = 10;
    EXPECT_EQ(cost_of(step, {spill, keep, keep}).step_ns, 7000) << "one copy may always be";
}

TEST(ActivationCost, ARecomputeTakesItsTimeAtTheFirstUse) {
    RecordedStep step = three();
    step.recompute(500);
    const ActivationCost cost = cost_of(step, {keep, keep, recompute});
    EXPECT_EQ(cost.step_ns, 7500);
    EXPECT_EQ(cost.recompute_ns, 500);
    EXPECT_EQ(cost.recomputed_bytes, 1000u);
    EXPECT_EQ(cost.peak_bytes, 3000u) << "at 4000 all three are there";
    // A restore goes on meanwhile.
    step.set_link(1, 0.5);
    EXPECT_EQ(cost_of(step, {keep, spill, recompute}).step_ns, 7500);
    step.set_link(1, 0.4);
    EXPECT_EQ(cost_of(step, {keep, spill, recompute}).step_ns, 7500) << "back at 5500, and needed then";
}

TEST(ActivationCost, ARecomputeNeedsItsInputs) {
    RecordedStep step = three();
    step.recompute(500, {0});
    step.set_link(1, 0.4);
    EXPECT_EQ(cost_of(step, {spill, keep, recompute}).step_ns, 7000 + 1500 + 500) << "the first one is back at 5500";
    // A chain: the input is computed again too, and stays for its own use.
    step = three();
    step.storages.pop_back();
    step.recompute(200);
    step.add(1000, 2000, 4000, 5000);
    step.recompute(500, {1});
    EXPECT_EQ(cost_of(step, {keep, recompute, recompute}).step_ns, 7700);
    EXPECT_EQ(cost_of(step, {keep, recompute, recompute}).peak_bytes, 3000u);
    EXPECT_EQ(cost_of(step, {keep, recompute, keep}).step_ns, 7200);
}

TEST(ActivationCost, AnInputStaysUntilTheRecompute) {
    RecordedStep step;
    step.add(1000, 0, 3000, 3500);  // used first in the backward
    step.add(400, 1000, 5000, 6000);
    step.recompute(100, {0});
    step.others = {{0, 0}, {4000, 5000}};
    step.limits.forward_end_ns = 2000;
    step.limits.end_ns = 6000;
    EXPECT_EQ(cost_of(step, {keep, keep}).peak_bytes, 5400u);
    EXPECT_EQ(cost_of(step, {keep, recompute}).peak_bytes, 6400u);
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

TEST(ActivationCost, TheHighestPointOfTheMemoryIsThePeak) {
    std::mt19937 random(5);
    for (int k = 0; k < 3000; k++) {
        const RecordedStep recorded = random_step(random, 12);
        const TrainingStep step = recorded.step();
        const ActivationTimeline timeline(step);
        std::vector<Fate> fates;
        for (uint32_t i = 0; i < timeline.storages(); i++) {
            const Fate fate = static_cast<Fate>(random() % 3);
            fates.push_back(timeline.possible(i, fate) ? fate : keep);
        }
        const uint64_t target = random() % 2 ? no_target : recorded.plain_peak() * (20 + random() % 90) / 100;
        const auto simulated = simulate_activations(step, fates, target);
        uint64_t highest = 0, before = 0;
        for (const MemoryPoint& point : simulated->memory) {
            highest = std::max(highest, point.bytes);
            EXPECT_GE(point.ns, before);
            before = point.ns;
        }
        ASSERT_EQ(highest, simulated->cost.peak_bytes) << k;
        ASSERT_EQ(simulated->memory.back().bytes, step.others.empty() ? 0 : step.others.back().bytes) << k;
        EXPECT_LE(static_cast<double>(before), simulated->cost.step_ns);
        EXPECT_LE(simulated->memory.size(), 8 * step.storages.size() + 2 * step.others.size());
        EXPECT_EQ(simulated->cost.step_ns, activation_cost(step, fates, target)->step_ns);
    }
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
