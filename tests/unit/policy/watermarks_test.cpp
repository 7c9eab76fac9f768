#include "policy/watermarks.h"

#include <gtest/gtest.h>

namespace stagehand::policy {
namespace {

Excess look(Watermarks& marks, uint64_t used, uint64_t leaving = 0, uint64_t kept = 0) {
    return marks.look({used, leaving, kept});
}

TEST(Watermarks, NothingLeavesWithoutLimits) {
    Watermarks marks{KeepLimits{}};
    EXPECT_EQ(look(marks, UINT64_MAX - 1, 0, UINT64_MAX - 1).may, 0u);
}

TEST(Watermarks, BeginAboveTheHighMarkAndEndAtTheLowOne) {
    Watermarks marks{{100, 60, UINT64_MAX}};
    EXPECT_EQ(look(marks, 100).may, 0u);
    EXPECT_EQ(look(marks, 101).must, 1u);
    EXPECT_EQ(look(marks, 101).may, 41u);
    EXPECT_EQ(look(marks, 80).must, 0u) << "below the high mark nobody has to wait";
    EXPECT_EQ(look(marks, 80).may, 20u);
    EXPECT_EQ(look(marks, 60).may, 0u);
    EXPECT_FALSE(marks.spilling());
    EXPECT_EQ(look(marks, 99).may, 0u);
}

TEST(Watermarks, WhatIsLeavingCountsAsGone) {
    Watermarks marks{{100, 60, UINT64_MAX}};
    EXPECT_EQ(look(marks, 120, 30).may, 0u);
    EXPECT_EQ(look(marks, 140, 30).may, 50u);
    EXPECT_EQ(look(marks, 10, 30).may, 0u) << "more leaves than is in use: the engine has given memory back already";
}

TEST(Watermarks, TheBytesThatMayStayAreALimitOfTheirOwn) {
    Watermarks marks{{UINT64_MAX, UINT64_MAX, 50}};
    EXPECT_EQ(look(marks, 1000, 0, 50).may, 0u);
    EXPECT_EQ(look(marks, 1000, 0, 75).must, 25u);
    Watermarks none{{UINT64_MAX, UINT64_MAX, 0}};
    EXPECT_EQ(look(none, 0, 0, 75).must, 75u);
}

TEST(Watermarks, CopiesMayBeUnderWayAsLongAsTheLimitsAreKept) {
    EXPECT_EQ((Watermarks{KeepLimits{}}.may_be_leaving({500, 400, 100}, 20)), 20u) << "no limit tells more";
    Watermarks kept{{UINT64_MAX, UINT64_MAX, 100}};
    EXPECT_EQ(kept.may_be_leaving({0, 60, 30}, 20), 90u) << "kept and leaving may be 120 together";
    EXPECT_EQ(kept.may_be_leaving({0, 60, 150}, 20), 20u);
    Watermarks used{{100, 60, UINT64_MAX}};
    EXPECT_EQ(used.may_be_leaving({100, 60, 0}, 20), UINT64_MAX);
    EXPECT_EQ(used.may_be_leaving({115, 60, 0}, 20), 45u) << "15 of them have to be gone";
    EXPECT_EQ(used.may_be_leaving({200, 60, 0}, 20), 20u);
    Watermarks both{{100, 60, 50}};
    EXPECT_EQ(both.may_be_leaving({100, 60, 10}, 20), 60u);
    EXPECT_EQ(both.may_be_leaving({130, 60, 10}, 20), 30u);
}

TEST(Watermarks, TensorsComeBackIntoMemoryThatIsFree) {
    EXPECT_EQ((Watermarks{KeepLimits{}}.may_be_ahead({500, 0, 100, 10, 600}, 20)), 20u) << "no limit tells more";

    Watermarks used{{100, 60, UINT64_MAX}};
    EXPECT_EQ(used.may_be_ahead({70, 0, 40, 15, 90}, 20), 45u) << "30 are free, and 15 are back";
    EXPECT_EQ(used.may_be_ahead({110, 0, 40, 15, 90}, 20), 15u);

    Watermarks kept{{UINT64_MAX, UINT64_MAX, 100}};
    EXPECT_EQ(kept.may_be_ahead({150, 0, 100, 0, 150}, 20), 0u) << "the backward begins";
    EXPECT_EQ(kept.may_be_ahead({140, 0, 70, 0, 150}, 20), 10u) << "30 are freed, of which gradients took 20";
    EXPECT_EQ(kept.may_be_ahead({100, 0, 80, 5, 150}, 10), 20u) << "saved tensors together are not more than 100";
    EXPECT_EQ(kept.may_be_ahead({100, 10, 80, 5, 150}, 10), 10u);

    Watermarks both{{100, 60, 50}};
    EXPECT_EQ(both.may_be_ahead({90, 0, 40, 10, 0}, 5), 10u);
    EXPECT_EQ(both.may_be_ahead({95, 0, 20, 10, 0}, 5), 15u);
}

TEST(Watermarks, WhatIsNeededSoonComesBackInAnyCase) {
    Watermarks kept{{UINT64_MAX, UINT64_MAX, 100}};
    EXPECT_EQ(kept.may_be_ahead({200, 0, 0, 0, 150}, 20), 20u);
    EXPECT_EQ(kept.may_be_ahead({200, 3, 5, 0, 150}, 20), 12u) << "8 bytes are used before it";
    EXPECT_EQ(kept.may_be_ahead({0, 0, 0, 0, 150}, 20), 20u) << "the use is not known";
    EXPECT_EQ(kept.may_be_ahead({0, 0, 60, 0, 150}, 20), 0u);
}

}  // namespace
}  // namespace stagehand::policy
