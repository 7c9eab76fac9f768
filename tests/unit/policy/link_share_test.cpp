#include "policy/link_share.h"

#include <gtest/gtest.h>

namespace stagehand::policy {
namespace {

constexpr uint64_t kLate = UINT64_MAX;

class LinkShareTest : public testing::Test {
protected:
    LinkShareTest() { share_.set_rate(2); }
    // Queues saved tensors of ten bytes as long as there is room. Returns their number.
    int fill(uint64_t due = kLate) {
        int count = 0;
        for (; count < 1000 && share_.has_room(0, due); count++) share_.saved_queued(10);
        return count;
    }

    LinkShare share_;
};

TEST_F(LinkShareTest, HoldsNothingBackWithoutWeights) {
    EXPECT_EQ(fill(), 1000);
    share_.passed(100);
    EXPECT_EQ(fill(), 1000);
}

TEST_F(LinkShareTest, HoldsNothingBackIfSpeedOrTimesAreUnknown) {
    share_.passed(0);
    share_.weights_queued(1000, 0);
    EXPECT_EQ(fill(), 1000) << "no times";
    LinkShare unknown;
    unknown.passed(100);
    unknown.weights_queued(1000, 0);
    EXPECT_TRUE(unknown.has_room(1 << 20, kLate)) << "no speed";
}

TEST_F(LinkShareTest, GivesSavedTensorsWhatWeightsLeave) {
    for (int use = 0; use < 5; use++) {
        share_.passed(100);  // the link carries 200 bytes
        share_.weights_queued(140, 0);
        EXPECT_EQ(fill(), 6) << use;
        EXPECT_FALSE(share_.has_room(0, kLate));
    }
}

TEST_F(LinkShareTest, CountsWhatIsAboutToBeQueued) {
    share_.passed(100);
    share_.weights_queued(150, 0);
    EXPECT_TRUE(share_.has_room(49, kLate));
    EXPECT_FALSE(share_.has_room(50, kLate));
}

TEST_F(LinkShareTest, KeepsNoRoomThatWasNotUsed) {
    share_.passed(100);
    share_.weights_queued(20, 0);
    for (int use = 0; use < 10; use++) share_.passed(100);
    EXPECT_EQ(fill(), 20);
}

TEST_F(LinkShareTest, WaitsUntilWeightsThatTakeLongAreCarried) {
    share_.passed(100);
    share_.weights_queued(500, 0);
    EXPECT_EQ(fill(), 0);
    share_.passed(100);
    EXPECT_EQ(fill(), 0) << "300 bytes are left";
    share_.passed(100);
    EXPECT_EQ(fill(), 10) << "100 bytes are left";
}

TEST_F(LinkShareTest, LetsTensorsPassThatAreNeededBeforeQueuedWeights) {
    share_.passed(100);
    share_.passed(100);
    share_.weights_queued(1000, 50);
    const uint64_t now = share_.position();
    EXPECT_EQ(now, 100u);
    EXPECT_FALSE(share_.has_room(0, now + 51));
    EXPECT_TRUE(share_.has_room(1 << 20, now + 50));
    share_.weights_queued(10, 20);
    EXPECT_TRUE(share_.has_room(0, now + 50)) << "weights that are needed later are queued";
}

// The engine waits for a copy. What was queued before it has come, however little the engine has computed.
TEST_F(LinkShareTest, KnowsWhatHasComeFromWaits) {
    share_.passed(100);
    const uint64_t weights = share_.weights_queued(1000, 0);
    EXPECT_EQ(share_.saved_queued(500), 1500u);
    EXPECT_EQ(fill(), 0);
    share_.arrived(weights);
    EXPECT_EQ(fill(), 0) << "500 bytes are left";
    share_.arrived(1400);
    EXPECT_EQ(fill(), 10);
    share_.arrived(weights);
    EXPECT_EQ(fill(), 0) << "an older copy tells nothing new";
}

TEST_F(LinkShareTest, IsNotSharedAnyMoreAfterAWhileWithoutWeights) {
    share_.passed(20'000'000);
    share_.weights_queued(1 << 30, 0);
    for (int use = 0; use < 2; use++) share_.passed(20'000'000);
    EXPECT_FALSE(share_.has_room(0, kLate));
    for (int use = 0; use < 2; use++) share_.passed(20'000'000);
    EXPECT_TRUE(share_.has_room(0, kLate));
}

}  // namespace
}  // namespace stagehand::policy
