// Host memory: pinning it, and asking what is pinned.
#include <sys/mman.h>

#include "instantiate.h"

namespace conformance {
namespace {

class HostMemoryTest : public Conformance {
protected:
    static constexpr uint64_t kPage = 4096;

    void SetUp() override {
        Conformance::SetUp();
        memory_ = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        ASSERT_NE(memory_, MAP_FAILED);
    }
    void TearDown() override {
        Conformance::TearDown();
        if (memory_) munmap(memory_, kBytes);
    }

    char* memory() const { return memory_; }
    bool is_pinned(const void* at, uint64_t bytes) {
        uint32_t pinned = 2;
        SH_EXPECT_OK(backend().host_is_pinned(device(), at, bytes, &pinned));
        EXPECT_LE(pinned, 1u);
        return pinned == 1;
    }

    static constexpr uint64_t kBytes = 16 * kPage;

private:
    char* memory_ = nullptr;
};

TEST_P(HostMemoryTest, RegisteredMemoryIsPinned) {
    if (has_contents()) {
        EXPECT_FALSE(is_pinned(memory(), kPage));
    }
    SH_OK_OR_END(backend().host_register(device(), memory() + 4 * kPage, 4 * kPage));
    EXPECT_TRUE(is_pinned(memory() + 4 * kPage, 4 * kPage));
    EXPECT_TRUE(is_pinned(memory() + 5 * kPage + 10, 100));
    EXPECT_TRUE(is_pinned(memory() + 8 * kPage - 1, 1));
    SH_OK_OR_END(backend().host_unregister(device(), memory() + 4 * kPage));
    if (has_contents()) {
        EXPECT_FALSE(is_pinned(memory() + 4 * kPage, kPage));
    }
}

TEST_P(HostMemoryTest, ARangeIsPinnedOnlyIfAllOfItIs) {
    if (!has_contents()) GTEST_SKIP() << "any pointer counts as pinned";
    SH_OK_OR_END(backend().host_register(device(), memory() + 4 * kPage, 4 * kPage));
    EXPECT_FALSE(is_pinned(memory() + 3 * kPage, 2 * kPage));
    EXPECT_FALSE(is_pinned(memory() + 7 * kPage, 2 * kPage));
    EXPECT_FALSE(is_pinned(memory(), kBytes));
    EXPECT_FALSE(is_pinned(memory() + 8 * kPage, 1));
    SH_OK_OR_END(backend().host_unregister(device(), memory() + 4 * kPage));
}

// Drivers differ in whether one copy may span two registrations. A range that counts as pinned must be copyable as one.
TEST_P(HostMemoryTest, PiecesThatTouchArePinnedTogetherOnlyIfOneCopyMaySpanThem) {
    SH_OK_OR_END(backend().host_register(device(), memory(), 4 * kPage));
    SH_OK_OR_END(backend().host_register(device(), memory() + 4 * kPage, 4 * kPage));
    EXPECT_TRUE(is_pinned(memory(), 4 * kPage));
    EXPECT_TRUE(is_pinned(memory() + 4 * kPage, 4 * kPage));
    const bool together = is_pinned(memory(), 8 * kPage);
    EXPECT_EQ(is_pinned(memory() + 3 * kPage, 2 * kPage), together);
    if (together) {
        const Memory there = new_memory(8 * kPage);
        const sh_stream stream = new_stream();
        SH_OK_OR_END(backend().copy_to_device(device(), stream, there.address, memory(), 8 * kPage));
        SH_OK_OR_END(backend().stream_synchronize(device(), stream));
    }
    SH_OK_OR_END(backend().host_unregister(device(), memory()));
    if (has_contents()) {
        EXPECT_FALSE(is_pinned(memory(), 8 * kPage));
    }
    EXPECT_TRUE(is_pinned(memory() + 4 * kPage, 4 * kPage));
    SH_OK_OR_END(backend().host_unregister(device(), memory() + 4 * kPage));
}

TEST_P(HostMemoryTest, ARefusalLeavesNothingBehind) {
    const Memory on_device = new_memory(page());
    const sh_stream stream = new_stream();
    const sh_backend_event event = new_event();
    SH_OK_OR_END(backend().host_register(device(), memory(), 4 * kPage));
    SH_EXPECT_FAILURE(backend().host_register(device(), memory(), 4 * kPage));
    // The error does not come back later from an unrelated call.
    SH_EXPECT_OK(backend().fill(device(), stream, on_device.address, 1, page()));
    SH_EXPECT_OK(backend().event_record(device(), event, stream));
    SH_EXPECT_OK(backend().event_synchronize(device(), event));
    SH_EXPECT_OK(backend().stream_synchronize(device(), stream));
    EXPECT_TRUE(is_pinned(memory(), 4 * kPage));
    SH_EXPECT_OK(backend().host_unregister(device(), memory()));
    SH_EXPECT_FAILURE(backend().host_unregister(device(), memory()));
    SH_EXPECT_OK(backend().stream_synchronize(device(), stream));
}

TEST_P(HostMemoryTest, CanBePinnedAgain) {
    for (int i = 0; i < 10; ++i) {
        SH_OK_OR_END(backend().host_register(device(), memory(), kBytes));
        SH_OK_OR_END(backend().host_unregister(device(), memory()));
    }
}

SH_ON_EVERY_BACKEND(HostMemoryTest);

}  // namespace
}  // namespace conformance
