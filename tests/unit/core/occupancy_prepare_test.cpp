// Host memory that is pinned in the background, before a pause needs it.
#include <chrono>
#include <thread>

#include "occupancy_fixture.h"

namespace stagehand::test {
namespace {

class OccupancyPrepare : public PausingTest {
protected:
    // Returns false if that does not happen in half a minute.
    bool wait_for_host_bytes(uint64_t bytes, const char* tag = nullptr) {
        for (int i = 0; i < 30'000; i++) {
            if (info(tag).host_bytes == bytes) return true;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return false;
    }
};

TEST_F(OccupancyPrepare, HostMemoryIsPinnedWhileTheTagsRun) {
    open();
    const uint64_t address = filled(1, 8 * kMiB);
    filled(2, 4 * kMiB, "lost", SH_CONTENTS_DROP);
    EXPECT_EQ(info().host_bytes, 0u);
    SUCCEEDS(prepare());
    EXPECT_TRUE(wait_for_host_bytes(8 * kMiB));
    EXPECT_EQ(info("default").pinned_bytes, 8 * kMiB);
    EXPECT_EQ(info("default").state, SH_OCCUPANCY_RUNNING + 0u);
    EXPECT_EQ(info("lost").host_bytes, 0u);
    EXPECT_GE(memory().pinned_bytes, 8 * kMiB);
    SUCCEEDS(prepare());  // nothing is missing
    SUCCEEDS(pause());
    EXPECT_EQ(info().host_bytes, 8 * kMiB);
    SUCCEEDS(resume());
    EXPECT_EQ(read(address, 8 * kMiB), contents(1, 8 * kMiB));
}

TEST_F(OccupancyPrepare, OnlyTheNamedTagsAndTheirContentsAreMeant) {
    open();
    filled(1, 4 * kMiB, "a");
    filled(2, 8 * kMiB, "b");
    SUCCEEDS(prepare({"b"}));
    EXPECT_TRUE(wait_for_host_bytes(8 * kMiB, "b"));
    EXPECT_EQ(info("a").host_bytes, 0u);
    SUCCEEDS(prepare({"a"}, 0, SH_CONTENTS_DROP));
    EXPECT_EQ(info("a").host_bytes, 0u);
    SUCCEEDS(pause({"b"}));
    SUCCEEDS(prepare({"b"}, SH_OCCUPANCY_REPEAT));
}

// A pause, a free, a trim and the end of the device may come at any moment of the preparation.
TEST_F(OccupancyPrepare, ItMayBeInterruptedAtAnyMoment) {
    open("capacity=512MiB", 384 * kMiB);
    for (int i = 0; i < 4; i++) {
        const uint64_t first = filled(1, 4 * kMiB, "a"), second = alloc(80 * kMiB, "b");
        SUCCEEDS(prepare());
        std::this_thread::sleep_for(std::chrono::milliseconds(2 * i));
        SUCCEEDS(pause({"a"}));
        EXPECT_EQ(info("a").host_bytes, 4 * kMiB);
        EXPECT_EQ(info("a").pinned_bytes, 4 * kMiB);
        SUCCEEDS(resume());
        EXPECT_EQ(read(first, 4 * kMiB), contents(1, 4 * kMiB));
        if (i % 3 == 0) {
            EXPECT_TRUE(wait_for_host_bytes(84 * kMiB));
        }
        SUCCEEDS(i % 2 ? sh_free(device_, second) : sh_occupancy_trim(device_, nullptr));
        EXPECT_EQ(info("b").host_bytes, 0u);
        SUCCEEDS(sh_free(device_, first));
        if (i % 2 == 0) {
            EXPECT_SUCCEEDS(sh_free(device_, second));
        }
        EXPECT_EQ(info().host_bytes, 0u);
        EXPECT_EQ(on_device().pinned_bytes, 0u);
    }
    filled(3, 84 * kMiB);
    SUCCEEDS(prepare());
}

}  // namespace
}  // namespace stagehand::test
