// Kinds of step: their orders are learned, replaced and added, and their times are told apart.
#include <gtest/gtest.h>

#include "core/plan/kinds.h"

namespace stagehand::core {
namespace {

constexpr size_t kUnits = 6;

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
    void measure(uint64_t ns, uint64_t steps = 6) {
        (void)kinds_.saw_times(kinds_.current(), order_, std::vector<uint64_t>(order_.followed().size(), ns), steps);
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

TEST_F(KindsOfSteps, NamedKindsHaveTimesOfTheirOwn) {
    for (int k = 0; k < 3; k++) {
        step({0, 1}, "long");
        measure(900);
        for (int i = 0; i < 4; i++) {
            step({0, 1}, "short");
            measure(100);
        }
    }
    const StepMix mix = kinds_.mix(order_);
    ASSERT_EQ(mix.traces.size(), 2u);
    EXPECT_NEAR(mix.weight(0), 0.2, 0.01);
    EXPECT_EQ(mix.traces[0][0].compute_ns, 900u);
    EXPECT_EQ(mix.traces[1][0].compute_ns, 100u);
    StepMix other = mix;
    EXPECT_FALSE(differ(mix, other));
    other.traces[1][0].compute_ns = other.traces[1][1].compute_ns = 150;
    EXPECT_TRUE(differ(mix, other));
    other = mix;
    other.cycle[1].steps = 9;
    EXPECT_TRUE(differ(mix, other));
}

TEST_F(KindsOfSteps, KindsThatDifferInTheirTimesAloneAreToldApartBySamples) {
    step({0, 1});
    for (int k = 0; k < 12; k++) measure(k % 4 ? 100 : 900);
    const StepMix mix = kinds_.mix(order_);
    ASSERT_EQ(mix.traces.size(), 2u);
    const size_t rare = mix.traces[0][0].compute_ns == 900 ? 0 : 1;
    EXPECT_NEAR(mix.weight(rare), 0.25, 0.02);
    EXPECT_EQ(mix.traces[1 - rare][1].compute_ns, 100u);
}

TEST_F(KindsOfSteps, OneOutlierIsNoKind) {
    step({0, 1});
    for (int k = 0; k < 12; k++) measure(k == 8 ? 900 : 100);
    EXPECT_EQ(kinds_.mix(order_).traces.size(), 1u);
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
