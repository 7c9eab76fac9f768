// Kinds of step: their orders are learned, replaced and added, and their times are known.
#include <gtest/gtest.h>

#include "core/plan/kinds.h"

namespace stagehand::core {
namespace {

constexpr size_t kUnits = 6;
constexpr double kCopyNs = 1000;  // of a step

class KindsOfSteps : public testing::Test {
protected:
    Kinds::Learned step(std::initializer_list<uint32_t> units, const char* name = nullptr) {
        uint32_t kind = kNone;
        if (name) {
            EXPECT_TRUE(kinds_.find(name, &kind).ok());
        }
        kinds_.begin(kind, order_);
        OrderRecord record;
        record.begin();
        for (const uint32_t unit : units) record.add(unit);
        record.end();
        return kinds_.learn(order_, record, kUnits);
    }
    std::vector<uint32_t> followed() const {
        std::vector<uint32_t> units;
        for (const Order::Entry& entry : order_.followed().entries()) units.push_back(entry.unit);
        return units;
    }
    bool measure(uint64_t ns) {
        return kinds_.saw_times(kinds_.current(), std::vector<uint64_t>(order_.followed().size(), ns));
    }

    Kinds kinds_;
    Order order_;
};
using Learned = Kinds::Learned;

TEST_F(KindsOfSteps, AnOrderIsLearnedAtOnceAndReplacedAfterTwoEqualSteps) {
    EXPECT_EQ(step({}), Learned::nothing);
    EXPECT_EQ(step({0, 0, 1}), Learned::replaced);
    EXPECT_EQ(order_.followed().entries()[0].uses, 2u);
    EXPECT_EQ(step({0, 2}), Learned::nothing);
    EXPECT_EQ(step({0, 2}), Learned::replaced);
    EXPECT_EQ(followed(), (std::vector<uint32_t>{0, 2}));
    EXPECT_FALSE(order_.has_others());
    EXPECT_EQ(step({0, 2}), Learned::nothing);
}

TEST_F(KindsOfSteps, AnOrderThatComesAgainIsAdded) {
    EXPECT_EQ(step({0, 1, 2}), Learned::replaced);
    EXPECT_EQ(step({0, 1}), Learned::nothing);
    EXPECT_EQ(step({0, 1, 2}), Learned::nothing);
    EXPECT_EQ(step({0, 1}), Learned::added);
    EXPECT_TRUE(order_.has_others());
    for (int k = 0; k < 20; k++)
        EXPECT_EQ(step(k % 2 ? std::initializer_list<uint32_t>{0, 1} : std::initializer_list<uint32_t>{0, 1, 2}),
                  Learned::nothing);
    // An order that has not come for long is removed with the next plan.
    for (int k = 0; k < 100; k++) step({0, 1});
    kinds_.remove_stale(order_, false);
    EXPECT_FALSE(order_.has_others());
}

TEST_F(KindsOfSteps, AnOrderThatIsNotOldStaysBesideANewOne) {
    step({0, 1, 2}, "whole");
    step({0, 2}, "part");
    kinds_.remove_stale(order_, true);
    EXPECT_TRUE(order_.has_others());
    for (int k = 0; k < 100; k++) step({0, 2}, "part");
    kinds_.remove_stale(order_, true);
    EXPECT_FALSE(order_.has_others());
    EXPECT_EQ(step({0, 1, 2}, "whole"), Learned::added);
    step({0, 2}, "part");
    step({1}, "new");
    kinds_.remove_stale(order_, false);
    EXPECT_FALSE(order_.has_others()) << "the engine may have changed for good";
}

TEST_F(KindsOfSteps, AnOrderThatIsSetAsideIsNotLearnedMeanwhile) {
    EXPECT_EQ(step({0, 1}), Learned::replaced);
    order_.set_aside();
    for (int k = 0; k < 4; k++) EXPECT_EQ(step({0, 1}), Learned::nothing);
    EXPECT_TRUE(order_.take_up(kUnits));
    EXPECT_EQ(step({0, 1}), Learned::nothing);
}

TEST_F(KindsOfSteps, NamedKindsHaveOrdersOfTheirOwn) {
    EXPECT_EQ(step({0, 1, 2}, "whole"), Learned::replaced);
    EXPECT_EQ(step({0, 2}, "part"), Learned::added);
    EXPECT_EQ(step({0, 1, 2}, "whole"), Learned::nothing);
    EXPECT_EQ(step({0, 1, 2, 3}, "whole"), Learned::nothing);
    EXPECT_EQ(step({0, 1, 2, 3}, "whole"), Learned::added);
    for (uint32_t unit = 0; unit < 4; unit++) EXPECT_TRUE(order_.contains(unit)) << unit;
    EXPECT_EQ(order_.find({{0, 0, 1}, {1, 0, 1}, {2, 0, 1}}), std::nullopt) << "the order before is gone";
    EXPECT_TRUE(order_.has_others());
}

TEST_F(KindsOfSteps, AnOrderHasTheTimesOfTheKindThatComputesLikeItCopies) {
    const auto cycles = [&](int times, int shorts) {
        for (int k = 0; k < times; k++) {
            step({0, 1}, "long");
            measure(900);
            for (int i = 0; i < shorts; i++) {
                step({0, 1}, "short");
                measure(100);
            }
        }
    };
    cycles(3, 4);
    const OrderTimes times = kinds_.times(order_, kCopyNs);
    ASSERT_EQ(times.size(), 1u);
    EXPECT_EQ(times.begin()->second, (std::vector<uint64_t>{900, 900}));
    EXPECT_EQ(kinds_.times(order_, 300).begin()->second, (std::vector<uint64_t>{100, 100}));
    EXPECT_FALSE(differ(times, {{times.begin()->first, {950, 900}}}));
    EXPECT_TRUE(differ(times, {{times.begin()->first, {100, 100}}}));
    step({0}, "third");
    kinds_.saw_times(kinds_.current(), {50});
    EXPECT_FALSE(differ(kinds_.times(order_, kCopyNs), {{kinds_.at(kinds_.current()).order, {50}}}))
        << "it stands alone, because the engine may have changed for good";
    cycles(20, 40);
    EXPECT_TRUE(differ(kinds_.times(order_, kCopyNs), times)) << "the long kind is rare";
    EXPECT_EQ(kinds_.times(order_, kCopyNs).at(times.begin()->first), (std::vector<uint64_t>{100, 100}));
}

TEST_F(KindsOfSteps, TimesChangeAfterTwoSamplesThatAgree) {
    step({0, 1});
    EXPECT_TRUE(measure(100));
    EXPECT_FALSE(measure(100));
    const auto time = [&] { return kinds_.times(order_, kCopyNs).begin()->second[0]; };
    EXPECT_TRUE(measure(900));
    EXPECT_EQ(time(), 100u);
    EXPECT_FALSE(measure(100)) << "one outlier";
    EXPECT_TRUE(measure(900));
    EXPECT_TRUE(measure(900));
    EXPECT_EQ(time(), 900u);
}

// No record tells the order of a step that the engine has given.
TEST_F(KindsOfSteps, AGivenOrderHasAKind) {
    order_.set({{0, 0, 1}, {1, 0, 1}}, kUnits, true);
    for (int k = 0; k < 3; k++) {
        kinds_.begin(kNone, order_);
        measure(70);
    }
    EXPECT_EQ(kinds_.at(kinds_.current()).steps, 3u);
    EXPECT_EQ(kinds_.times(order_, kCopyNs).at(0), (std::vector<uint64_t>{70, 70}));
    EXPECT_EQ(kinds_.stable_for(), 3u);
    kinds_.clear();
    EXPECT_TRUE(kinds_.times(order_, kCopyNs).empty());
}

TEST_F(KindsOfSteps, UnitsThatAreGoneTakeTheirKindsAlong) {
    step({0, 1, 2}, "whole");
    step({0, 1}, "part");
    const auto gone = [](uint32_t unit) { return unit == 2; };
    order_.forget(gone, kUnits);
    kinds_.forget(gone);
    EXPECT_TRUE(order_.contains(0) && order_.contains(1) && !order_.contains(2));
    EXPECT_EQ(step({0, 1}, "whole"), Learned::nothing);
    EXPECT_EQ(step({0, 1}, "part"), Learned::nothing);
}

}  // namespace
}  // namespace stagehand::core
