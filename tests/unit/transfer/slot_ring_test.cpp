#include "transfer/staging/slot_ring.h"

#include <gtest/gtest.h>

#include "staging_fixture.h"

namespace stagehand::transfer {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class SlotRingTest : public testing::Test {
protected:
    void SetUp() override {
        ASSERT_TRUE(device_->stream_create(&stream_).ok());
        ASSERT_TRUE(device_->stream_create(&other_).ok());
    }
    void fly(Slot& slot, sh_stream stream) {
        ASSERT_TRUE(device_->event_record(slot.event, stream).ok());
        slot.stream = stream;
        slot.recorded = true;
        ring_.set_in_flight(slot);
    }
    size_t collect() {
        size_t count = 0;
        ring_.collect([&](Slot& slot) {
            count++;
            ring_.give_back(slot);
        });
        return count;
    }

    test::FakeBackend fake_;
    std::unique_ptr<BackendDevice> device_ = fake_.open();
    sh_stream stream_ = 0, other_ = 0;
    SlotRing ring_;
};

TEST_F(SlotRingTest, SlotsComeBackWhenTheirEventIsDone) {
    ASSERT_TRUE(ring_.allocate(*device_, {1, 3, 4096, 8192}).ok());
    Slot& first = *ring_.take();
    Slot& second = *ring_.take();
    fake_.close_gate();
    fly(first, stream_);
    fly(second, stream_);
    SlotRing::look(*device_, ring_.watch());
    EXPECT_EQ(collect(), 0u);
    EXPECT_EQ(fake_.calls("event_query"), 1);  // what is queued behind it is not asked about
    fake_.open_gate();
    ASSERT_TRUE(device_->stream_synchronize(stream_).ok());
    SlotRing::look(*device_, ring_.watch());
    EXPECT_EQ(collect(), 2u);
    EXPECT_FALSE(ring_.any_in_flight());
    ring_.free();
    EXPECT_EQ(fake_.events(), 0u);
    EXPECT_EQ(fake_.registrations(), 0u);
}

TEST_F(SlotRingTest, AStreamThatIsBusyDoesNotHideAnother) {
    ASSERT_TRUE(ring_.allocate(*device_, {1, 3, 4096, 8192}).ok());
    Slot& slow = *ring_.take();
    Slot& fast = *ring_.take();
    test::Latch latch;
    const auto wait = [](void* of) { static_cast<test::Latch*>(of)->wait(); };
    ASSERT_TRUE(device_->stream_launch(stream_, wait, &latch, 0).ok());
    fly(slow, stream_);
    fly(fast, other_);
    ASSERT_TRUE(device_->stream_synchronize(other_).ok());
    SlotRing::look(*device_, ring_.watch());
    EXPECT_EQ(collect(), 1u);
    EXPECT_TRUE(fast.done);
    latch.open();
    ring_.free();
}

// A look takes its time without a lock: a slot that has taken off meanwhile was not asked about.
TEST_F(SlotRingTest, ASlotThatFliesAgainDuringALookStaysInFlight) {
    ASSERT_TRUE(ring_.allocate(*device_, {1, 2, 4096, 8192}).ok());
    Slot& again = *ring_.take();
    Slot& old = *ring_.take();
    fly(again, stream_);
    ASSERT_TRUE(device_->stream_synchronize(stream_).ok());
    SlotRing::look(*device_, ring_.watch());
    ASSERT_EQ(collect(), 1u);  // `again` has been seen done once
    fly(old, stream_);
    ASSERT_TRUE(device_->stream_synchronize(stream_).ok());
    const auto watched = ring_.watch();
    fake_.close_gate();
    fly(*ring_.take(), stream_);
    SlotRing::look(*device_, watched);
    EXPECT_EQ(collect(), 1u);
    EXPECT_TRUE(ring_.any_in_flight());
    fake_.open_gate();
    ring_.free();
}

TEST_F(SlotRingTest, NoSlotSpansTwoRegistrations) {
    fake_.may_register = [](uint64_t bytes) { return bytes <= 64 * kMiB; };
    ASSERT_TRUE(ring_.allocate(*device_, {1, 50, 5 * kMiB, 5 * kMiB + 4096}).ok());
    EXPECT_GT(fake_.registrations(), 1u);
    EXPECT_GE(ring_.slots(), 47u);
    uint32_t pinned = 0;
    for (size_t i = ring_.slots(); i > 0; i--) {
        ASSERT_TRUE(device_->host_is_pinned(ring_.take()->memory, 5 * kMiB + 4096, &pinned).ok());
        EXPECT_EQ(pinned, 1u);  // as one range of one registration
    }
    ring_.free();
}

TEST_F(SlotRingTest, HoldsNothingAfterAFailure) {
    for (int64_t n = 1; n <= 3; n++) {
        fake_.fail_call(n, false, "event_create");
        EXPECT_FALSE(ring_.allocate(*device_, {1, 3, 4096, 8192}).ok());
        EXPECT_EQ(fake_.events(), 0u);
        EXPECT_EQ(fake_.registrations(), 0u);
        EXPECT_EQ(ring_.bytes(), 0u);
    }
    fake_.fail_call(0);
    EXPECT_TRUE(ring_.allocate(*device_, {1, 3, 4096, 8192}).ok());
    ring_.free();
}

}  // namespace
}  // namespace stagehand::transfer
