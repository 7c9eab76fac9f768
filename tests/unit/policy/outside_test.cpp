// The memory for units outside the order, while the order is being learned and afterwards.
#include <gtest/gtest.h>

#include "policy/outside.h"

namespace stagehand::policy::test {
namespace {

using Units = std::vector<Outside::Unit>;

TEST(Outside, NothingNeedsNothing) {
    const OutsideNeeds needs = needs_outside({});
    EXPECT_EQ(needs.pages(), 0u);
    EXPECT_FALSE(needs.unit);
    EXPECT_EQ(needs_outside({.asked_pages = 5}).pages(), 0u) << "never more than there is";
}

TEST(Outside, TheLargestThatStaysMustFit) {
    const Units units = {{0, 3}, {1, 7}, {2, 5}};
    const OutsideNeeds needs = needs_outside({.to_stay = units, .max_held = 2});
    EXPECT_EQ(needs.to_stay_pages, 7u) << "max_held is about units of the order";
    EXPECT_EQ(needs.to_learn_pages, 0u);
    EXPECT_EQ(needs.unit, 1u);
}

TEST(Outside, TheLargestThatMayJoinMustFitTogether) {
    const Units units = {{0, 3}, {1, 7}, {2, 5}, {3, 6}};
    EXPECT_EQ(needs_outside({.to_learn = units, .max_held = 1}).pages(), 7u);
    EXPECT_EQ(needs_outside({.to_learn = units, .max_held = 2}).pages(), 13u);
    EXPECT_EQ(needs_outside({.to_learn = units, .max_held = 9}).pages(), 21u);
}

TEST(Outside, UnitsThatStayAreHeldBesideUnitsThatMayJoin) {
    const OutsideNeeds needs =
        needs_outside({.to_learn = {{0, 4}, {1, 2}}, .to_stay = {{2, 1}, {3, 3}}, .max_held = 1});
    EXPECT_EQ(needs.to_learn_pages, 4u);
    EXPECT_EQ(needs.to_stay_pages, 3u);
    EXPECT_EQ(needs.unit, 0u) << "the one of the larger part";
    EXPECT_EQ(needs_outside({.to_learn = {{0, 1}}, .to_stay = {{2, 1}, {3, 3}}}).unit, 3u);
}

TEST(Outside, WhatTheEngineAskedForIsBesideTheOrder) {
    const Units learn = {{0, 4}, {1, 4}}, stay = {{2, 3}, {3, 3}, {4, 3}};
    EXPECT_EQ(needs_outside({.to_learn = learn, .to_stay = stay, .asked_pages = 5}).pages(), 4u + 5);
    EXPECT_EQ(needs_outside({.to_learn = learn, .to_stay = stay, .asked_pages = 2}).pages(), 4u + 3);
    EXPECT_EQ(needs_outside({.to_learn = learn, .to_stay = stay, .asked_pages = 12}).pages(), 4u + 9);
}

// Which of the units will stay outside, only the engine knows.
TEST(Outside, WhatTheEngineAskedForIsThereBeforeTheOrderIsKnown) {
    const Units learn = {{0, 4}, {1, 4}, {2, 4}};
    EXPECT_EQ(needs_outside({.to_learn = learn, .asked_pages = 7}).pages(), 7u);
    EXPECT_EQ(needs_outside({.to_learn = learn, .asked_pages = 70}).pages(), 12u);
    EXPECT_EQ(needs_outside({.to_learn = learn, .to_stay = {{3, 1}}, .asked_pages = 70}).pages(), 13u);
}

}  // namespace
}  // namespace stagehand::policy::test
