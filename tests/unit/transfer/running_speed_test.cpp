// The speed of a lane, as its copies show it. The simulated device's link carries a byte in a nanosecond.
#include <gtest/gtest.h>

#include "backend/backend_device.h"
#include "sim/sim_backend.h"
#include "transfer/carrier/running_speed.h"

namespace stagehand::transfer {
namespace {

constexpr uint64_t kBetween = 16, kCopyBytes = 4 << 20, kLatencyNs = 1000;

class RunningSpeedTest : public testing::Test {
protected:
    void SetUp() override {
        const sh_backend& table = *sim::sim_backend();
        sh_backend_device* device = nullptr;
        sh_backend_device_info info = {};
        info.struct_size = sizeof info;
        ASSERT_EQ(table.device_open(0, "bandwidth=1e9;latency=1000;granularity=4KiB;capacity=1GiB", &device, &info),
                  SH_OK);
        device_ = std::make_unique<BackendDevice>(table, device, info);
        sh_backend_page page = 0;
        ASSERT_TRUE(device_->pages_create(kCopyBytes, 1, &page).ok());
        ASSERT_TRUE(device_->range_reserve(kCopyBytes, kCopyBytes, &memory_).ok());
        ASSERT_TRUE(device_->pages_map(memory_, kCopyBytes, 1, &page).ok());
        ASSERT_TRUE(device_->stream_create(&stream_).ok());
        speed_ = std::make_unique<RunningSpeed>(*device_, kBetween);
    }

    // Copies until a sample can be read, and a look at it.
    void copy(uint64_t bytes = kCopyBytes, uint64_t copies = kBetween) {
        for (uint64_t i = 0; i < copies; i++) {
            const bool timed = speed_->meter().begin(stream_, bytes);
            ASSERT_TRUE(device_->copy_to_device(stream_, memory_, nullptr, bytes).ok());
            if (timed) speed_->meter().end(stream_);
            speed_->copied();
        }
        ASSERT_TRUE(device_->stream_synchronize(stream_).ok());
        speed_->look();
    }

    std::unique_ptr<BackendDevice> device_;
    uint64_t memory_ = 0;
    sh_stream stream_ = 0;
    std::unique_ptr<RunningSpeed> speed_;
};

TEST_F(RunningSpeedTest, IsTheMeanOfTheFirstSamplesAndThenFollowsSlowly) {
    speed_->start(2, kLatencyNs, 1 << 20);
    for (const double expected : {3.0 / 2, 4.0 / 3, 5.0 / 4, 1 + 3.0 / 16, 1 + 9.0 / 64}) {
        EXPECT_TRUE(speed_->known());
        copy();
        EXPECT_NEAR(speed_->bytes_per_ns(), expected, 1e-6);
    }
}

TEST_F(RunningSpeedTest, IsTheFirstSampleIfNothingWasTold) {
    speed_->start(0, kLatencyNs, 1 << 20);
    EXPECT_FALSE(speed_->known());
    copy(kCopyBytes, kBetween - 1);
    EXPECT_FALSE(speed_->known()) << "there are too few copies";
    copy(kCopyBytes, 1);
    EXPECT_NEAR(speed_->bytes_per_ns(), 1, 1e-6);
}

TEST_F(RunningSpeedTest, StaysIfCopiesAreTooSmall) {
    speed_->start(2, kLatencyNs, 1 << 20);
    copy(1000);
    EXPECT_EQ(speed_->bytes_per_ns(), 2);
}

}  // namespace
}  // namespace stagehand::transfer
