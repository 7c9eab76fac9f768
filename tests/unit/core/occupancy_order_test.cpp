// The order in which tags come back, and the pages of the driver behind them.
#include <atomic>
#include <thread>

#include "occupancy_fixture.h"

namespace stagehand::test {
namespace {

class OccupancyOrder : public OccupancyTest {
protected:
    void SetUp() override {
        if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    }
};

TEST_F(OccupancyOrder, TheTagThatIsNamedFirstComesBackFirst) {
    open("capacity=64MiB;bandwidth=200MB/s");
    filled(1, 12 * kMiB, "a");
    filled(2, 12 * kMiB, "b");
    for (const std::vector<const char*>& order : {std::vector{"a", "b"}, std::vector{"b", "a"}}) {
        SUCCEEDS(pause());
        std::atomic<bool> watches{false}, ended{false};
        uint64_t seen = 0, wrong = 0;
        std::thread watcher([&] {
            for (; !ended; watches = true) {
                const uint64_t later = info(order[1]).staged_bytes, first = info(order[0]).staged_bytes;
                if (first && later < 12 * kMiB) wrong++;
                if (!first && later) seen++;
            }
        });
        while (!watches) std::this_thread::yield();
        EXPECT_SUCCEEDS(resume(order));
        ended = true;
        watcher.join();
        EXPECT_EQ(wrong, 0u) << order[0];
        EXPECT_GT(seen, 0u) << order[0] << " was never there alone";
        EXPECT_EQ(info().staged_bytes, 0u);
    }
}

TEST_F(OccupancyOrder, LargeAllocationsLieInLargePagesOfTheDriver) {
    open("capacity=64MiB;largest_handle=16MiB;poison=1");
    const uint64_t address = filled(1, 30 * kMiB);
    EXPECT_EQ(on_device().pages, 4u) << "16, 8, 4 and 2 MiB";
    EXPECT_EQ(address % (16 * kMiB), 0u);
    SUCCEEDS(pause());
    EXPECT_EQ(on_device().pages, 0u);
    SUCCEEDS(resume());
    EXPECT_EQ(read(address, 30 * kMiB), contents(1, 30 * kMiB));
    reinterpret_cast<uint8_t*>(address)[20 * kMiB] ^= 1;
    sh_occupancy_change change = SH_OCCUPANCY_CHANGE_INIT;
    SUCCEEDS(pause({}, 0, SH_CONTENTS_DEFAULT, &change));
    EXPECT_EQ(change.copied_bytes, 2 * kMiB) << "what is compared is no larger";
    SUCCEEDS(resume());
    std::vector<uint8_t> truth = contents(1, 30 * kMiB);
    truth[20 * kMiB] ^= 1;
    EXPECT_EQ(read(address, 30 * kMiB), truth);
}

}  // namespace
}  // namespace stagehand::test
