// The activation planner on steps of transformers.
#include <gtest/gtest.h>

#include "activations/bounds.h"
#include "activations/plan.h"
#include "activations/search.h"
#include "activations/timeline.h"
#include "training_steps.h"

namespace stagehand::activations::test {
namespace {

constexpr double bytes_in_gib = 1024.0 * 1024 * 1024;

uint64_t gib(double count) { return static_cast<uint64_t>(count * bytes_in_gib); }
double in_gib(uint64_t bytes) { return static_cast<double>(bytes) / bytes_in_gib; }

RecordedStep without_recompute(RecordedStep step) {
    for (SavedStorage& storage : step.storages) storage.cheap = false;
    return step;
}

// 16 layers of width 4096, 8,192 tokens of bf16, on a link of 55.5 GB/s. Weights and gradients have 6 GiB each.
TEST(ActivationPlan, SpillsWhatTheLinkCarriesInTheForwardFreeOfCharge) {
    const Transformer model;
    const RecordedStep recorded = without_recompute(model.record());
    const TrainingStep step = recorded.step();
    const double plain = static_cast<double>(model.plain_ns());
    EXPECT_NEAR(in_gib(recorded.plain_peak()), 22.97, 0.02);

    const auto free = fastest_activations(step, recorded.plain_peak() - gib(5.4));
    EXPECT_EQ(free->cost.step_ns, plain);
    EXPECT_LE(free->cost.peak_bytes, recorded.plain_peak() - gib(5.4));
    const auto leanest = leanest_activations(step, plain);
    EXPECT_EQ(leanest->cost.step_ns, plain);
    EXPECT_NEAR(in_gib(recorded.plain_peak() - leanest->cost.peak_bytes), 5.5, 0.1);
    EXPECT_LE(static_cast<double>(leanest->cost.peak_bytes), 1.01 * leanest->bound);

    const auto more = fastest_activations(step, recorded.plain_peak() - gib(10));
    EXPECT_NEAR(more->cost.step_ns / plain, 1.27, 0.01);
    EXPECT_LE(more->cost.step_ns, 1.005 * more->bound);
}

TEST(ActivationPlan, MoreMemoryIsNeverSlower) {
    const RecordedStep recorded = Transformer().record();
    double before = std::numeric_limits<double>::infinity();
    for (double target = 12.75; target < 23.5; target += 0.5) {
        const auto plan = fastest_activations(recorded.step(), gib(target));
        EXPECT_LE(plan->cost.peak_bytes, gib(target));
        EXPECT_LE(plan->cost.step_ns, before * 1.0005) << target;
        EXPECT_GE(plan->cost.step_ns, plan->bound * (1 - 1e-9));
        before = plan->cost.step_ns;
    }
    EXPECT_EQ(before, static_cast<double>(Transformer().plain_ns()));
}

// A step of 20,016 storages, most of them of about half a MiB.
TEST(ActivationPlan, PlansLargeSteps) {
    Transformer model;
    model.split = 139;
    RecordedStep recorded = model.record();
    recorded.limits.copy_latency_ns = 1000;
    const double plain = static_cast<double>(model.plain_ns());
    const auto plan = fastest_activations(recorded.step(), gib(13.4));
    EXPECT_LE(plan->cost.peak_bytes, gib(13.4));
    EXPECT_LE(plan->cost.step_ns, 1.01 * plain);
    EXPECT_LE(plan->cost.step_ns, 1.001 * plan->bound);
    const auto leanest = leanest_activations(recorded.step(), 1.01 * plain);
    EXPECT_LE(leanest->cost.step_ns, 1.01 * plain);
    EXPECT_LE(static_cast<double>(leanest->cost.peak_bytes), 1.03 * leanest->bound);
}

TEST(ActivationPlan, TheSameStepGivesTheSamePlan) {
    std::mt19937 random(61);
    for (int instance = 0; instance < 8; instance++) {
        const RecordedStep recorded = random_step(random, 60);
        const uint64_t target = recorded.plain_peak() * 9 / 10;
        const auto one = fastest_activations(recorded.step(), target),
                   other = fastest_activations(recorded.step(), target);
        EXPECT_EQ(one->fates, other->fates);
        EXPECT_EQ(one->cost.step_ns, other->cost.step_ns);
    }
}

// Each storage is used shortly after it is saved, so that the memory is full at every moment. A family of choices that
// looks at each of these moments would pass many times as many events.
TEST(ActivationPlan, TheEffortIsBoundedIfTheMemoryIsFullAtEachMoment) {
    RecordedStep recorded;
    constexpr uint64_t count = 5000;
    for (uint64_t i = 0; i < count; i++) recorded.add(4096, i * 1000, (i + 1 + i % 7) * 1000, (i + 1 + i % 7) * 1000);
    recorded.set_link(55.5, 55.5);
    recorded.limits.forward_end_ns = recorded.limits.end_ns = (count + 7) * 1000;
    const TrainingStep step = recorded.step();
    const ActivationTimeline timeline(step);
    ActivationSearch search(timeline);
    constexpr uint64_t effort = 2'000'000;
    const FoundFates found = search.fastest(4 * 4096, effort);
    EXPECT_LE(found.cost.peak_bytes, 4 * 4096u);
    EXPECT_LE(search.effort(), effort + 20 * timeline.events.size());
}

}  // namespace
}  // namespace stagehand::activations::test
