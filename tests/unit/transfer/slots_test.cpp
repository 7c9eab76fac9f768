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

}  // namespace
}  // namespace stagehand::transfer
