#include "transfer/staging/slots.h"

#include <gtest/gtest.h>

#include "staging_fixture.h"

namespace stagehand::transfer {
namespace {

constexpr uint64_t kSlotMiB = 1 << 20;

class SlotsTest : public testing::Test {
protected:
    void SetUp() override {
        ASSERT_TRUE(device_->stream_create(&stream_).ok());
        ASSERT_TRUE(device_->stream_create(&other_).ok());
    }
    void fly(Slot& slot, sh_stream stream) {
        ASSERT_TRUE(device_->event_record(slot.event, stream).ok());
        slot.stream = stream;
        slot.recorded = true;
        slots_.set_in_flight(slot);
    }
    size_t collect() {
        size_t count = 0;
        slots_.collect([&](Slot& slot) {
            count++;
            slots_.give_back(slot);
        });
        return count;
    }

    test::FakeBackend fake_;
    std::unique_ptr<BackendDevice> device_ = fake_.open();
    sh_stream stream_ = 0, other_ = 0;
    Slots slots_;
};

TEST_F(SlotsTest, SlotsComeBackWhenTheirEventIsDone) {
    ASSERT_TRUE(slots_.allocate(*device_, {1, 3, 4096, 8192}).ok());
    Slot& first = *slots_.take();
    Slot& second = *slots_.take();
    fake_.close_gate();
    fly(first, stream_);
    fly(second, stream_);
    Slots::look(*device_, slots_.watch());
    EXPECT_EQ(collect(), 0u);
    EXPECT_EQ(fake_.calls("event_query"), 1);  // what is queued behind it is not asked about
    fake_.open_gate();
    ASSERT_TRUE(device_->stream_synchronize(stream_).ok());
    Slots::look(*device_, slots_.watch());
    EXPECT_EQ(collect(), 2u);
    EXPECT_FALSE(slots_.any_in_flight());
    slots_.free();
    EXPECT_EQ(fake_.events(), 0u);
    EXPECT_EQ(fake_.registrations(), 0u);
}

TEST_F(SlotsTest, AStreamThatIsBusyDoesNotHideAnother) {
    ASSERT_TRUE(slots_.allocate(*device_, {1, 3, 4096, 8192}).ok());
    Slot& slow = *slots_.take();
    Slot& fast = *slots_.take();
    test::Latch latch;
    const auto wait = [](void* of) { static_cast<test::Latch*>(of)->wait(); };
    ASSERT_TRUE(device_->stream_launch(stream_, wait, &latch, 0).ok());
    fly(slow, stream_);
    fly(fast, other_);
    ASSERT_TRUE(device_->stream_synchronize(other_).ok());
    Slots::look(*device_, slots_.watch());
    EXPECT_EQ(collect(), 1u);
    EXPECT_TRUE(fast.done);
    latch.open();
    slots_.free();
}

// A check of the slots runs without a lock. It did not ask about a slot that went into flight again meanwhile.
TEST_F(SlotsTest, ASlotThatFliesAgainDuringALookStaysInFlight) {
    ASSERT_TRUE(slots_.allocate(*device_, {1, 2, 4096, 8192}).ok());
    Slot& again = *slots_.take();
    Slot& old = *slots_.take();
    fly(again, stream_);
    ASSERT_TRUE(device_->stream_synchronize(stream_).ok());
    Slots::look(*device_, slots_.watch());
    ASSERT_EQ(collect(), 1u);  // `again` has been seen done once
    fly(old, stream_);
    ASSERT_TRUE(device_->stream_synchronize(stream_).ok());
    const auto watched = slots_.watch();
    fake_.close_gate();
    fly(*slots_.take(), stream_);
    Slots::look(*device_, watched);
    EXPECT_EQ(collect(), 1u);
    EXPECT_TRUE(slots_.any_in_flight());
    fake_.open_gate();
    slots_.free();
}

TEST_F(SlotsTest, NoSlotSpansTwoRegistrations) {
    fake_.may_register = [](uint64_t bytes) { return bytes <= 64 * kSlotMiB; };
    ASSERT_TRUE(slots_.allocate(*device_, {1, 50, 5 * kSlotMiB, 5 * kSlotMiB + 4096}).ok());
    EXPECT_GT(fake_.registrations(), 1u);
    EXPECT_GE(slots_.slots(), 47u);
    uint32_t pinned = 0;
    for (size_t i = slots_.slots(); i > 0; i--) {
        ASSERT_TRUE(device_->host_is_pinned(slots_.take()->memory, 5 * kSlotMiB + 4096, &pinned).ok());
        EXPECT_EQ(pinned, 1u);  // as one range of one registration
    }
    slots_.free();
}

}  // namespace
}  // namespace stagehand::transfer
