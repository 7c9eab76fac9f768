// TimeDrift: which steps are measured, and when the times count as changed.
#include "policy/time_drift.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace stagehand::test {
namespace {

using policy::TimeDrift;
using Times = std::vector<uint64_t>;

constexpr uint64_t kUses = 40;
constexpr double kStepNs = 50e6;

Times times(uint64_t ns) { return Times(kUses, ns); }

Times noisy(uint64_t ns, std::mt19937& random) {
    Times found(kUses);
    for (uint64_t& one : found) one = ns * (80 + random() % 41) / 100;
    return found;
}

// Runs steps until one is measured. Returns their number.
uint64_t until_sample(TimeDrift& drift, double step_ns = kStepNs) {
    for (uint64_t steps = 1; steps < 10'000; steps++)
        if (drift.begin_step(kUses, step_ns)) return steps;
    return UINT64_MAX;
}

TEST(TimeDrift, MeasuresSomeSteps) {
    TimeDrift drift;
    drift.begin_anew();
    EXPECT_EQ(until_sample(drift), 6u);
    for (int i = 0; i < 100; i++) {
        const uint64_t interval = until_sample(drift);
        EXPECT_TRUE(interval >= 5 && interval <= 7) << interval;
    }
}

TEST(TimeDrift, SeesEachOfTheStepsThatComeInTurn) {
    for (uint64_t period = 2; period <= 8; period++) {
        TimeDrift drift;
        std::vector<int> seen(period);
        uint64_t step = 0;
        for (int i = 0; i < 100; i++) seen[(step += until_sample(drift)) % period]++;
        for (const int times : seen) EXPECT_GE(times, 5) << "of " << period << " steps in turn";
    }
}

TEST(TimeDrift, ShortStepsAreMeasuredLessOften) {
    TimeDrift drift;
    until_sample(drift, 1e6);
    EXPECT_NEAR(static_cast<double>(until_sample(drift, 1e6)), 106, 1) << "40 uses of 4 us, 0.15 % of 1 ms";
    EXPECT_NEAR(static_cast<double>(until_sample(drift, 1e3)), 106, 1);
    EXPECT_NEAR(static_cast<double>(until_sample(drift, 1e3)), 1024, 1);
}

TEST(TimeDrift, TwoSamplesInARowHaveToAgree) {
    TimeDrift drift;
    until_sample(drift);
    EXPECT_FALSE(drift.saw(times(100), times(200)));
    EXPECT_EQ(until_sample(drift), 1u) << "the next step is measured, too";
    EXPECT_TRUE(drift.saw(times(100), times(204)));
    EXPECT_EQ(drift.changed(), times(202));
}

TEST(TimeDrift, StepsInTurnChangeNothing) {
    TimeDrift drift;
    uint64_t step = 0, samples = 0;
    for (; step < 1000; step++) {
        if (!drift.begin_step(kUses, kStepNs)) continue;
        samples++;
        EXPECT_FALSE(drift.saw(times(100), times(step % 2 ? 100 : 300))) << step;
    }
    EXPECT_GT(samples, 140u);
    EXPECT_LT(samples, 350u) << "two for each interval";
}

TEST(TimeDrift, NoiseChangesNothing) {
    std::mt19937 random(5);
    for (int i = 0; i < 2000; i++) EXPECT_FALSE(policy::differ(noisy(100, random), noisy(100, random)));
    EXPECT_TRUE(policy::differ(times(100), times(120)));
    EXPECT_TRUE(policy::differ(times(0), times(1)));
    EXPECT_FALSE(policy::differ(times(0), times(0)));
    EXPECT_TRUE(policy::differ(Times(1), Times(2)));
    Times moved = times(100);
    for (uint64_t i = 0; i < kUses; i++) moved[i] = i % 2 ? 150 : 50;
    EXPECT_TRUE(policy::differ(times(100), moved)) << "the sum is the same";
}

TEST(TimeDrift, ANewPlanBeginsAnew) {
    TimeDrift drift;
    until_sample(drift);
    EXPECT_FALSE(drift.saw(times(100), times(200)));
    drift.begin_anew();
    EXPECT_EQ(until_sample(drift), 6u);
    EXPECT_FALSE(drift.saw(times(100), times(200))) << "the sample before belongs to another plan";
}

}  // namespace
}  // namespace stagehand::test
