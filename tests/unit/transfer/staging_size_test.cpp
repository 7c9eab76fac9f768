#include "transfer/staging/staging_size.h"

#include <gtest/gtest.h>

namespace stagehand::transfer {
namespace {

sh_backend_device_info device_with(uint64_t piece_bytes) {
    sh_backend_device_info info = {};
    info.staging_piece_bytes = piece_bytes;
    return info;
}

TEST(StagingSize, FollowsCoresAndTheBackend) {
    const StagingSize few = choose_staging_size({}, device_with(256 << 10), 2, nullptr);
    EXPECT_EQ(few.threads, 2u);
    EXPECT_EQ(few.piece_bytes, 256u << 10);
    EXPECT_EQ(few.slots, 6u);
    EXPECT_EQ(choose_staging_size({}, device_with(0), 1, nullptr).threads, 2u);
    const StagingSize many = choose_staging_size({}, device_with(4 << 20), 64, nullptr);
    EXPECT_EQ(many.threads, 12u);
    EXPECT_EQ(choose_staging_size({}, device_with(0), 8, nullptr).threads, 6u);
    EXPECT_EQ(many.piece_bytes, 4u << 20);
    EXPECT_GT(many.slot_bytes, many.piece_bytes);
}

TEST(StagingSize, OptionsComeBeforeTheVariableAndTheVariableBeforeCores) {
    StagingOptions options;
    EXPECT_EQ(choose_staging_size(options, device_with(4096), 2, "5").threads, 5u);
    options.threads = 3;
    EXPECT_EQ(choose_staging_size(options, device_with(4096), 2, "5").threads, 3u);
}

TEST(StagingSize, IgnoresAVariableThatIsNoNumber) {
    for (const char* text : {"", "0", "65", "-1", "4x", " 4", "99999999999999999999"})
        EXPECT_EQ(choose_staging_size({}, device_with(4096), 2, text).threads, 2u) << text;
}

TEST(StagingSize, RingBytesAreACeiling) {
    StagingOptions options;
    options.bytes = 10 << 20;
    const StagingSize size = choose_staging_size(options, device_with(1 << 20), 4, nullptr);
    EXPECT_LE(size.slots * size.slot_bytes, options.bytes);
    EXPECT_GE(size.slots, 8u);
    options.bytes = 100 << 10;  // less than two pieces: smaller pieces
    const StagingSize small = choose_staging_size(options, device_with(1 << 20), 4, nullptr);
    EXPECT_GE(small.slots, 2u);
    EXPECT_LE(small.slots * small.slot_bytes, options.bytes);
    EXPECT_LE(small.threads, small.slots);
    EXPECT_EQ(small.piece_bytes % 4096, 0u);
    options.bytes = 1;  // never nothing
    EXPECT_EQ(choose_staging_size(options, device_with(1 << 20), 4, nullptr).piece_bytes, 4096u);
}

TEST(StagingSize, BoundsPiecesAndThreads) {
    StagingOptions options;
    options.piece_bytes = UINT64_MAX;
    options.threads = 100000;
    const StagingSize size = choose_staging_size(options, device_with(0), 4, nullptr);
    EXPECT_EQ(size.piece_bytes, 32u << 20);
    EXPECT_EQ(size.threads, 64u);
    options.piece_bytes = 1;
    EXPECT_EQ(choose_staging_size(options, device_with(0), 4, nullptr).piece_bytes, 4096u);
}

TEST(StagingSize, AllWorkersHaveAPartOfAFairPiece) {
    constexpr uint64_t kLeast = 256 << 10, kMost = 4 << 20;
    EXPECT_EQ(fair_piece(12 << 20, 12, kLeast, kMost), 1u << 20);
    EXPECT_EQ(fair_piece((12 << 20) + 1, 12, kLeast, kMost), (1u << 20) + 4096) << "in whole pages of host memory";
    EXPECT_EQ(fair_piece(100 << 20, 12, kLeast, kMost), kMost);
    EXPECT_EQ(fair_piece(1 << 20, 12, kLeast, kMost), kLeast);
    EXPECT_EQ(fair_piece(1 << 20, 12, kLeast, 65536), 65536u) << "pieces are never larger than slots";
    EXPECT_EQ(fair_piece(8 << 20, 1, kLeast, kMost), kMost) << "other loads wait";
    EXPECT_EQ(fair_piece(0, 12, kLeast, kMost), kLeast);
}

}  // namespace
}  // namespace stagehand::transfer
