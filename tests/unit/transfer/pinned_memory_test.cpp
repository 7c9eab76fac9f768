#include "transfer/host/pinned_memory.h"

#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include <sys/mman.h>

#include <gtest/gtest.h>

#include "fake_backend.h"
#include "platform/host_memory.h"
#include "transfer/host/registration.h"

namespace stagehand::transfer {
namespace {

using test::FakeBackend;

constexpr uint64_t kPinnedMiB = 1 << 20;

// Returns the bytes of memory that belong to this process alone.
uint64_t resident_bytes() {
    std::ifstream file("/proc/self/smaps_rollup");
    std::string name;
    for (uint64_t kibibytes = 0; file >> name;)
        if (name == "Rss:" && file >> kibibytes) return kibibytes << 10;
    return 0;
}

TEST(PinnedMemory, IsZeroedPageAlignedPinnedAndExact) {
    FakeBackend fake;
    auto device = fake.open();
    for (const uint64_t bytes : {uint64_t(1), uint64_t(4096), uint64_t(5000), 3 * kPinnedMiB + 1, 70 * kPinnedMiB}) {
        PinnedMemory memory;
        [[maybe_unused]] const uint64_t before = resident_bytes();
        ASSERT_TRUE(PinnedMemory::allocate(*device, bytes, &memory).ok());
        EXPECT_TRUE(memory.pinned());
        EXPECT_EQ(memory.bytes(), bytes);
        EXPECT_EQ(memory.pinned_bytes(), bytes);
        EXPECT_EQ(reinterpret_cast<uint64_t>(memory.data()) % 4096, 0u);
        const char* const data = static_cast<const char*>(memory.data());
        EXPECT_EQ(data[0], 0);
        EXPECT_EQ(std::memcmp(data, data + 1, bytes - 1), 0);
        EXPECT_LT(fake.pinned_bytes(), bytes + 4096);  // no rounding to powers of two
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        if (bytes >= 70 * kPinnedMiB) {
            EXPECT_LT(resident_bytes(), before + bytes + 8 * kPinnedMiB);
        }
#endif
    }
    EXPECT_EQ(fake.registrations(), 0u);
}

TEST(PinnedMemory, IsRegisteredInSmallerPiecesWhereOneCallIsRefused) {
    FakeBackend fake;
    auto device = fake.open();
    fake.may_register = [](uint64_t bytes) { return bytes <= 100 * kPinnedMiB; };
    PinnedMemory memory;
    ASSERT_TRUE(PinnedMemory::allocate(*device, 300 * kPinnedMiB + 5000, &memory).ok());
    EXPECT_TRUE(memory.pinned());
    EXPECT_EQ(memory.piece_bytes(), 64 * kPinnedMiB);
    EXPECT_EQ(fake.registrations(), 5u);
    PinnedMemory moved = std::move(memory);
    EXPECT_EQ(memory.data(), nullptr);
    EXPECT_TRUE(moved.pinned());
    moved.reset();
    EXPECT_EQ(fake.registrations(), 0u);
}

TEST(PinnedMemory, KeepsThePrefixThatCouldBePinned) {
    FakeBackend fake;
    auto device = fake.open();
    uint64_t left = 150 * kPinnedMiB;
    fake.may_register = [&](uint64_t bytes) { return bytes <= left && (left -= bytes, true); };
    PinnedMemory memory;
    ASSERT_TRUE(PinnedMemory::allocate(*device, 300 * kPinnedMiB, &memory).ok());
    EXPECT_FALSE(memory.pinned());
    EXPECT_EQ(memory.pinned_bytes(), 128 * kPinnedMiB);
    memory.reset();
    EXPECT_EQ(fake.registrations(), 0u);
}

// A device may still write to memory that the driver has not unpinned. No other allocation may get its addresses.
TEST(PinnedMemory, StaysWhereItCannotBeUnpinned) {
    FakeBackend fake;
    auto device = fake.open();
    const auto is_mapped = [](void* at) { return msync(at, 4096, MS_ASYNC) == 0; };
    for (const bool for_ever : {false, true}) {
        PinnedMemory memory;
        ASSERT_TRUE(PinnedMemory::allocate(*device, kPinnedMiB, &memory).ok());
        void* const data = memory.data();
        fake.fail_call(1, for_ever, "host_unregister");
        memory.reset();
        EXPECT_EQ(memory.data(), nullptr);
        EXPECT_EQ(is_mapped(data), for_ever);
        EXPECT_EQ(fake.registrations(), for_ever ? 1u : 0u);
        fake.fail_call(0);
        if (!for_ever) continue;
        EXPECT_TRUE(device->host_unregister(data).ok());
        munmap(data, kPinnedMiB);
    }
}

TEST(PinnedMemory, IsGivenUnpinnedWhereTheSystemRefuses) {
    FakeBackend fake;
    auto device = fake.open();
    fake.may_register = [](uint64_t) { return false; };
    PinnedMemory memory;
    ASSERT_TRUE(PinnedMemory::allocate(*device, 10 * kPinnedMiB, &memory).ok());
    EXPECT_FALSE(memory.pinned());
    EXPECT_EQ(memory.pinned_bytes(), 0u);
    EXPECT_EQ(memory.piece_bytes(), 0u);
    std::memset(memory.data(), 1, 10 * kPinnedMiB);
    EXPECT_EQ(static_cast<char*>(memory.data())[10 * kPinnedMiB - 1], 1);
}

TEST(PinnedMemory, RefusesMoreThanThereIs) {
    FakeBackend fake;
    auto device = fake.open();
    PinnedMemory memory;
    for (const uint64_t bytes :
         {platform::read_host_memory().available_bytes + (uint64_t(8) << 30), UINT64_MAX, UINT64_MAX - 4096}) {
        const Status status = PinnedMemory::allocate(*device, bytes, &memory);
        EXPECT_EQ(status.code(), SH_ERROR_OUT_OF_HOST_MEMORY) << status.text();
        EXPECT_EQ(memory.data(), nullptr);
    }
    EXPECT_EQ(PinnedMemory::allocate(*device, 0, &memory).code(), SH_ERROR_INVALID_ARGUMENT);
}

TEST(RegisterRange, NeverAsksForHalfATebibyteAtOnce) {
    FakeBackend fake;
    auto device = fake.open();
    uint64_t largest = 0;
    fake.may_register = [&](uint64_t bytes) { return largest = std::max(largest, bytes), true; };
    Registration registration;
    void* const nowhere = reinterpret_cast<void*>(uint64_t(1) << 45);  // the fake backend never touches it
    ASSERT_TRUE(register_range(*device, nowhere, uint64_t(1) << 41, &registration).ok());
    EXPECT_EQ(largest, uint64_t(256) << 30);
    EXPECT_EQ(fake.pinned_bytes(), uint64_t(1) << 41);
    unregister_range(*device, nowhere, registration);
    EXPECT_EQ(fake.registrations(), 0u);
}

TEST(RegisterRange, StopsWhereTheDriverHasEnough) {
    FakeBackend fake;
    auto device = fake.open();
    uint64_t left = 700 * kPinnedMiB;
    fake.may_register = [&](uint64_t bytes) { return bytes <= left && (left -= bytes, true); };
    Registration registration;
    void* const nowhere = reinterpret_cast<void*>(uint64_t(1) << 45);
    EXPECT_EQ(register_range(*device, nowhere, 1200 * kPinnedMiB, &registration).code(), SH_ERROR_BACKEND);
    EXPECT_EQ(registration.piece_bytes, 256 * kPinnedMiB);
    EXPECT_EQ(registration.registered_bytes, 512 * kPinnedMiB);
    unregister_range(*device, nowhere, registration);
    EXPECT_EQ(fake.registrations(), 0u);
}

class ForeignPin : public testing::Test {
protected:
    FakeBackend fake_;
    std::unique_ptr<BackendDevice> device_ = fake_.open();
    std::vector<char> memory_ = std::vector<char>(100000);
    uint64_t piece_ = 0;
};

TEST_F(ForeignPin, RefusesRangesThatOverlapInPart) {
    ASSERT_TRUE(pin_foreign(*device_, memory_.data() + 1000, 1000, &piece_).ok());
    uint64_t other = 0;
    EXPECT_EQ(pin_foreign(*device_, memory_.data() + 500, 501, &other).code(), SH_ERROR_BUSY);
    EXPECT_EQ(pin_foreign(*device_, memory_.data() + 1999, 2, &other).code(), SH_ERROR_BUSY);
    EXPECT_EQ(pin_foreign(*device_, memory_.data(), 5000, &other).code(), SH_ERROR_BUSY);
    EXPECT_EQ(pin_foreign(*device_, memory_.data() + 1000, 2000, &other).code(), SH_ERROR_BUSY);
    unpin_foreign(*device_, memory_.data() + 1000, 1000, piece_);
    EXPECT_TRUE(pin_foreign(*device_, memory_.data(), 5000, &other).ok());
    unpin_foreign(*device_, memory_.data(), 5000, other);
}

TEST_F(ForeignPin, LeavesMemoryThatItsOwnerHasPinned) {
    PinnedMemory owned;
    ASSERT_TRUE(PinnedMemory::allocate(*device_, 10000, &owned).ok());
    ASSERT_TRUE(pin_foreign(*device_, static_cast<char*>(owned.data()) + 100, 1000, &piece_).ok());
    EXPECT_EQ(piece_, 0u);
    unpin_foreign(*device_, static_cast<char*>(owned.data()) + 100, 1000, piece_);
    EXPECT_EQ(fake_.registrations(), 1u);
}

TEST_F(ForeignPin, IsAllOrNothing) {
    fake_.may_register = [](uint64_t) { return false; };
    EXPECT_FALSE(pin_foreign(*device_, memory_.data(), 1000, &piece_).ok());
    uint64_t left = 100 * kPinnedMiB;
    fake_.may_register = [&](uint64_t bytes) { return bytes <= left && (left -= bytes, true); };
    void* const nowhere = reinterpret_cast<void*>(uint64_t(1) << 45);
    EXPECT_FALSE(pin_foreign(*device_, nowhere, 400 * kPinnedMiB, &piece_).ok());
    EXPECT_EQ(fake_.registrations(), 0u);
    EXPECT_EQ(pin_foreign(*device_, nullptr, 10, &piece_).code(), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(pin_foreign(*device_, memory_.data(), 0, &piece_).code(), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(pin_foreign(*device_, memory_.data(), UINT64_MAX, &piece_).code(), SH_ERROR_INVALID_ARGUMENT);
}

TEST_F(ForeignPin, GivesPiecesForRangesThatSpanThem) {
    fake_.may_register = [](uint64_t bytes) { return bytes <= 64 * kPinnedMiB; };
    char* const nowhere = reinterpret_cast<char*>(uint64_t(1) << 45);
    ASSERT_TRUE(pin_foreign(*device_, nowhere, 256 * kPinnedMiB, &piece_).ok());
    EXPECT_EQ(piece_, 64 * kPinnedMiB);
    uint64_t inside = 0;
    ASSERT_TRUE(pin_foreign(*device_, nowhere + 64 * kPinnedMiB, 70 * kPinnedMiB, &inside).ok());
    EXPECT_EQ(inside, 64 * kPinnedMiB);
    unpin_foreign(*device_, nowhere + 64 * kPinnedMiB, 70 * kPinnedMiB, inside);
    // Its pieces would have to be cut at places that are not multiples from its start.
    EXPECT_EQ(pin_foreign(*device_, nowhere + 10, 70 * kPinnedMiB, &inside).code(), SH_ERROR_BUSY);
    unpin_foreign(*device_, nowhere, 256 * kPinnedMiB, piece_);
    EXPECT_EQ(fake_.registrations(), 0u);
}

}  // namespace
}  // namespace stagehand::transfer
