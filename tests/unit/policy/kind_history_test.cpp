// Which kinds of step count as alternating, and how often they come.
#include <gtest/gtest.h>

#include "policy/kind_history.h"

namespace stagehand::policy::test {
namespace {

// Some steps of one kind in a row.
struct Visit {
    uint32_t kind, steps;
};

void saw(KindHistory& history, std::initializer_list<Visit> visits, int times = 1) {
    for (int k = 0; k < times; k++)
        for (const Visit& visit : visits)
            for (uint32_t i = 0; i < visit.steps; i++) history.saw(visit.kind);
}

TEST(KindsInTurn, CountOnceOneOfThemComesAgain) {
    KindHistory history;
    EXPECT_EQ(history.active(), 0u);
    saw(history, {{0, 1}});
    EXPECT_EQ(history.active(), 1u);
    saw(history, {{1, 100}});
    EXPECT_EQ(history.active(), 2u) << "the engine may have changed for good";
    EXPECT_EQ(history.stable_for(), 100u);
    saw(history, {{0, 1}});
    EXPECT_EQ(history.active(), 3u);
    EXPECT_EQ(history.stable_for(), 102u);
    EXPECT_EQ(history.steps_of(0), 2);
    EXPECT_EQ(history.steps_of(1), 100);
    saw(history, {{1, 30}});
    EXPECT_EQ(history.steps_of(1), 200) << "the present run is not over";
    EXPECT_EQ(history.steps_in_a_row(), 30u);
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

}  // namespace
}  // namespace stagehand::policy::test
