// Which kinds of step count as alternating, and in which cycle.
#include <gtest/gtest.h>

#include <random>

#include "policy/kind_history.h"

namespace stagehand::policy::test {
namespace {

void saw(KindHistory& history, std::initializer_list<Visit> visits, int times = 1) {
    for (int k = 0; k < times; k++)
        for (const Visit& visit : visits)
            for (uint32_t i = 0; i < visit.steps; i++) history.saw(visit.kind);
}

TEST(KindsInTurn, CountOnceOneOfThemComesAgain) {
    KindHistory history;
    EXPECT_EQ(history.active(), 0u);
    EXPECT_TRUE(history.cycle(false).empty());
    saw(history, {{0, 1}});
    EXPECT_EQ(history.active(), 1u);
    saw(history, {{1, 100}});
    EXPECT_EQ(history.active(), 2u) << "the engine may have changed for good";
    EXPECT_EQ(history.stable_for(), 100u);
    saw(history, {{0, 1}});
    EXPECT_EQ(history.active(), 3u);
    EXPECT_EQ(history.stable_for(), 102u);
    const auto cycle = history.cycle(false);
    ASSERT_EQ(cycle.size(), 2u);
    EXPECT_EQ(cycle[0].steps, 1u);
    EXPECT_EQ(cycle[1].steps, 100u);
    saw(history, {{1, 30}});
    EXPECT_EQ(history.cycle(false)[1].steps, 100u) << "the present run is not over";
    EXPECT_EQ(history.expected(), 1u);
}

TEST(KindsInTurn, ThatDoNotComeForLongAreLeftOut) {
    KindHistory history;
    saw(history, {{0, 1}, {1, 10}}, 5);
    EXPECT_EQ(history.active(), 3u);
    saw(history, {{1, 90}});
    EXPECT_EQ(history.active(), 3u);
    saw(history, {{1, 20}});
    EXPECT_EQ(history.active(), 2u);
    saw(history, {{2, 5}});
    EXPECT_EQ(history.active(), 4u);
    EXPECT_EQ(history.stable_for(), 5u);
    history.forget(2);
    EXPECT_EQ(history.active(), 2u);
    EXPECT_EQ(history.runs_of(2), 0u);
}

TEST(KindsInTurn, HaveTheCycleOfTheirRuns) {
    KindHistory history;
    saw(history, {{0, 1}, {1, 2}, {0, 1}, {2, 3}, {0, 1}, {1, 2}}, 5);
    uint64_t steps[3] = {}, visits[3] = {};
    for (const Visit& visit : history.cycle(false)) {
        steps[visit.kind] += visit.steps;
        visits[visit.kind]++;
    }
    EXPECT_EQ(visits[0], 3u);
    EXPECT_EQ(visits[1], 2u);
    EXPECT_EQ(visits[2], 1u);
    EXPECT_EQ(steps[0], 3u);
    EXPECT_EQ(steps[1], 4u);
    EXPECT_EQ(steps[2], 3u);
}

// Samples say how often a kind comes, and nothing of its runs.
TEST(KindsInTurn, HaveTheWeightsOfTheirSamples) {
    KindHistory history;
    std::mt19937 random(7);
    for (int k = 0; k < 400; k++) history.saw(random() % 5 == 0, 6);
    const auto cycle = history.cycle(true);
    ASSERT_EQ(cycle.size(), 2u);
    EXPECT_EQ(cycle[1].steps, 1u);
    EXPECT_GE(cycle[0].steps, 3u);
    EXPECT_LE(cycle[0].steps, 6u);
}

}  // namespace
}  // namespace stagehand::policy::test
