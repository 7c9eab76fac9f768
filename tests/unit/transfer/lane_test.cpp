#include "transfer/lane/lane.h"

#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fake_backend.h"

namespace stagehand::transfer {
namespace {

class LaneTest : public testing::Test {
protected:
    Lane lend(Direction direction) {
        Lane lane;
        EXPECT_TRUE(lanes_->lend(direction, &lane).ok());
        return lane;
    }

    test::FakeBackend fake_;
    std::unique_ptr<BackendDevice> device_ = fake_.open();
    std::unique_ptr<Lanes> lanes_ = std::make_unique<Lanes>(*device_);
};

// An engine may go on with a capture that holds the library's copies, even after the library has given up its part of
// the capture.
TEST_F(LaneTest, IsNotLentWhileItsStreamTakesPartInACapture) {
    sh_stream captured = 0;
    {
        const Lane lane = lend(Direction::to_device);
        captured = fake_.capturing = lane.stream();
    }
    EXPECT_NE(lend(Direction::to_device).stream(), captured);
    fake_.capturing = 0;
    const Lane a = lend(Direction::to_device), b = lend(Direction::to_device);
    EXPECT_TRUE(a.stream() == captured || b.stream() == captured);
    EXPECT_EQ(fake_.streams(), 2u);
}

TEST_F(LaneTest, StreamsAreDestroyedWithTheDevicesLanes) {
    { const Lane a = lend(Direction::to_device), b = lend(Direction::to_host); }
    EXPECT_EQ(fake_.streams(), 2u);
    fake_.fail_call(1, false, "stream_destroy");  // the call is tried once more
    lanes_.reset();
    EXPECT_EQ(fake_.streams(), 0u);
}

TEST_F(LaneTest, ThreadsNeverHaveTheSameAtOnce) {
    std::mutex mutex;
    std::set<sh_stream> lent;
    size_t twice = 0;
    const auto work = [&] {
        for (int k = 0; k < 500; k++) {
            const Lane lane = lend(Direction::to_device);
            {
                std::lock_guard lock(mutex);
                twice += !lent.insert(lane.stream()).second;
            }
            std::this_thread::yield();
            std::lock_guard lock(mutex);
            lent.erase(lane.stream());
        }
    };
    std::vector<std::thread> threads;
    for (int k = 0; k < 4; k++) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(twice, 0u);
    EXPECT_LE(fake_.streams(), 4u);
}

}  // namespace
}  // namespace stagehand::transfer
