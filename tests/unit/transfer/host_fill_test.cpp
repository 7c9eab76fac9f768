#include "transfer/host/host_fill.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "fake_backend.h"
#include "platform/host_memory.h"
#include "platform/thread.h"

namespace stagehand::transfer {
namespace {

using test::FakeBackend;

constexpr uint64_t kMiB = uint64_t(1) << 20;

// Memories of an owner who notes what is ready, as the library's do.
class HostFillTest : public testing::Test {
protected:
    void reserve(std::vector<uint64_t> sizes) {
        for (const uint64_t bytes : sizes) {
            GradualMemory memory;
            ASSERT_TRUE(GradualMemory::reserve(*device_, bytes, &memory).ok());
            memories_.push_back(std::move(memory));
        }
    }
    Status start() {
        std::vector<GradualMemory*> wanted;
        for (GradualMemory& memory : memories_) wanted.push_back(&memory);
        return fill_.start(wanted, [this](size_t index, bool pinned) {
            const std::lock_guard lock(mutex_);
            memories_[index].note_ready(pinned);
            order_.push_back(index);
        });
    }

    FakeBackend fake_;
    std::unique_ptr<BackendDevice> device_ = fake_.open();
    std::vector<GradualMemory> memories_;
    std::mutex mutex_;
    std::vector<size_t> order_;
    HostFill fill_{*device_};
    bool pinned_ = false;  // what wait_for() told last
};

TEST_F(HostFillTest, AllPiecesBecomeReadyAndThoseOfAMemoryInTheirOrder) {
    reserve({3 * kMiB, 300 * kMiB, 5000});
    EXPECT_EQ(memories_[1].bytes(), 0u);
    ASSERT_TRUE(start().ok());
    for (const GradualMemory& memory : memories_) {
        ASSERT_TRUE(fill_.wait_for(memory, memory.reserved_bytes(), &pinned_).ok());
        const std::lock_guard lock(mutex_);
        EXPECT_TRUE(memory.is_ready());
        EXPECT_EQ(memory.pinned_bytes(), memory.bytes());
    }
    std::ranges::sort(order_);
    EXPECT_EQ(order_, (std::vector<size_t>{0, 1, 1, 2}));
    EXPECT_EQ(memories_[2].bytes(), 5000u);
    EXPECT_EQ(fake_.pinned_bytes(), 303 * kMiB + 8192);
    fill_.stop();
    memories_.clear();
    EXPECT_EQ(fake_.pinned_bytes(), 0u);
}

TEST_F(HostFillTest, WhatIsReadyStaysAndTheRestFollowsLater) {
    reserve({600 * kMiB});
    ASSERT_TRUE(start().ok());
    ASSERT_TRUE(fill_.wait_for(memories_[0], 1, &pinned_).ok());
    fill_.stop();
    const uint64_t ready = memories_[0].ready_bytes();
    EXPECT_GE(ready, GradualMemory::kPieceBytes);
    std::memset(memories_[0].data(), 7, ready);
    ASSERT_TRUE(start().ok());
    ASSERT_TRUE(fill_.wait_for(memories_[0], memories_[0].reserved_bytes(), &pinned_).ok());
    fill_.stop();
    EXPECT_EQ(memories_[0].pinned_bytes(), 600 * kMiB);
    EXPECT_EQ(static_cast<const char*>(memories_[0].data())[ready - 1], 7);
}

TEST_F(HostFillTest, MemoryThatIsNotOfTheFillIsReadyAlready) {
    reserve({kMiB});
    EXPECT_TRUE(fill_.wait_for(memories_[0], kMiB, &pinned_).ok());
    ASSERT_TRUE(start().ok());
    ASSERT_TRUE(fill_.wait_for(memories_[0], kMiB, &pinned_).ok());
    GradualMemory other;
    EXPECT_TRUE(fill_.wait_for(other, kMiB, &pinned_).ok());
}

// Many small memories are pinned as fast as few large ones only if several threads call the driver.
TEST_F(HostFillTest, SeveralMemoriesArePinnedAtOnce) {
    if (platform::usable_cores() < 2) GTEST_SKIP() << "one processor has one thread that pins";
    std::condition_variable changed;
    int inside = 0, most = 0;
    fake_.may_register = [&](uint64_t) {
        std::unique_lock lock(mutex_);
        most = std::max(most, ++inside);
        changed.notify_all();
        changed.wait_for(lock, std::chrono::seconds(60), [&] { return most >= 2; });
        inside--;
        return true;
    };
    reserve(std::vector<uint64_t>(6, 3 * kMiB + 4096));
    ASSERT_TRUE(start().ok());
    for (const GradualMemory& memory : memories_) {
        ASSERT_TRUE(fill_.wait_for(memory, memory.reserved_bytes(), &pinned_).ok());
        EXPECT_TRUE(pinned_);
    }
    EXPECT_GE(most, 2);
}

// The pieces before the refusal stay pinned, and the others are ready without that.
TEST_F(HostFillTest, ARefusalOfOneMemoryEndsThePinning) {
    fake_.may_register = [](uint64_t bytes) { return bytes < 4 * kMiB; };
    reserve({5 * kMiB, 5 * kMiB, 5 * kMiB, 5 * kMiB, 5 * kMiB});
    ASSERT_TRUE(start().ok());
    for (const GradualMemory& memory : memories_) {
        ASSERT_TRUE(fill_.wait_for(memory, memory.reserved_bytes(), &pinned_).ok());
        EXPECT_FALSE(pinned_);
    }
    fill_.stop();
    EXPECT_EQ(fake_.pinned_bytes(), 0u);
    EXPECT_LE(fake_.calls("host_register"), 4) << "each thread asks once at most";
}

TEST_F(HostFillTest, MemoryNeedNotBePinned) {
    reserve({kMiB, kMiB});
    memories_[0].set_pins(false);
    ASSERT_TRUE(start().ok());
    ASSERT_TRUE(fill_.wait_for(memories_[0], kMiB, &pinned_).ok());
    EXPECT_FALSE(pinned_);
    ASSERT_TRUE(fill_.wait_for(memories_[1], kMiB, &pinned_).ok());
    EXPECT_TRUE(pinned_);
    fill_.stop();
    EXPECT_EQ(memories_[0].pinned_bytes(), 0u);
    EXPECT_EQ(memories_[0].bytes(), kMiB);
    ASSERT_TRUE(fill_.wait_for(memories_[0], kMiB, &pinned_).ok());
    EXPECT_FALSE(pinned_);
    EXPECT_EQ(fake_.pinned_bytes(), kMiB);
}

TEST_F(HostFillTest, MoreThanTheMachineHasIsRefusedBeforeAnythingIsTaken) {
    GradualMemory memory;
    EXPECT_EQ(GradualMemory::reserve(*device_, uint64_t(1) << 50, &memory).code(), SH_ERROR_OUT_OF_HOST_MEMORY);
    EXPECT_EQ(memory.data(), nullptr);
}

}  // namespace
}  // namespace stagehand::transfer
