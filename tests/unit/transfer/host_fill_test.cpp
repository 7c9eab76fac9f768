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

TEST_F(HostFillTest, MoreThanTheMachineHasIsRefusedBeforeAnythingIsTaken) {
    GradualMemory memory;
    EXPECT_EQ(GradualMemory::reserve(*device_, uint64_t(1) << 50, &memory).code(), SH_ERROR_OUT_OF_HOST_MEMORY);
    EXPECT_EQ(memory.data(), nullptr);
}

}  // namespace
}  // namespace stagehand::transfer
