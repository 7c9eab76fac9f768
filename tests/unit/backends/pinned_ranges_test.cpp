#include "support/pinned_ranges.h"

#include <gtest/gtest.h>

#include <cstring>

#include "page.h"
#include "support/last_error.h"

namespace stagehand::support {
namespace {

void* at(uint64_t address) { return reinterpret_cast<void*>(address); }

TEST(PinnedRanges, RoundToPages) {
    PinnedRanges ranges(0);
    ASSERT_EQ(ranges.add(at(10 * kPage + 100), 200), SH_OK);
    EXPECT_EQ(ranges.bytes(), kPage);
    EXPECT_TRUE(ranges.contains(at(10 * kPage), kPage));
    EXPECT_FALSE(ranges.contains(at(10 * kPage), kPage + 1));
    EXPECT_FALSE(ranges.contains(at(10 * kPage - 1), 1));
    EXPECT_EQ(ranges.remove(at(10 * kPage)), SH_ERROR_INVALID_ARGUMENT) << "not the pointer that was given";
    EXPECT_EQ(ranges.remove(at(10 * kPage + 100)), SH_OK);
    EXPECT_EQ(ranges.bytes(), 0u);
}

TEST(PinnedRanges, RefuseAnyOverlap) {
    PinnedRanges ranges(0);
    ASSERT_EQ(ranges.add(at(10 * kPage), 4 * kPage), SH_OK);
    EXPECT_LT(ranges.add(at(10 * kPage), 4 * kPage), 0);
    EXPECT_LT(ranges.add(at(9 * kPage), kPage + 1), 0);
    EXPECT_LT(ranges.add(at(14 * kPage - 1), 1), 0);
    EXPECT_LT(ranges.add(at(11 * kPage), kPage), 0);
    EXPECT_LT(ranges.add(at(kPage), 100 * kPage), 0);
    EXPECT_EQ(ranges.add(at(9 * kPage), kPage), SH_OK);
    EXPECT_EQ(ranges.add(at(14 * kPage), 1), SH_OK);
    EXPECT_TRUE(ranges.contains(at(9 * kPage), 6 * kPage)) << "neighbours cover it together";
    EXPECT_EQ(ranges.bytes(), 6 * kPage);
}

TEST(PinnedRanges, RefuseWhatIsNoMemory) {
    PinnedRanges ranges(0);
    EXPECT_LT(ranges.add(nullptr, 1), 0);
    EXPECT_LT(ranges.add(at(kPage), 0), 0);
    EXPECT_LT(ranges.add(at(kPage), UINT64_MAX), 0);
    EXPECT_LT(ranges.add(at(kPage), UINT64_MAX - kPage - 10), 0);
    EXPECT_EQ(ranges.bytes(), 0u);
}

TEST(PinnedRanges, RefuseBeyondTheLimit) {
    PinnedRanges ranges(4 * kPage);
    ASSERT_EQ(ranges.add(at(10 * kPage), 3 * kPage), SH_OK);
    EXPECT_EQ(ranges.add(at(20 * kPage), 2 * kPage), SH_ERROR_OUT_OF_HOST_MEMORY);
    EXPECT_NE(std::strstr(last_error(), "12288 of 16384"), nullptr) << last_error();
    EXPECT_EQ(ranges.add(at(20 * kPage), kPage), SH_OK);
    ASSERT_EQ(ranges.remove(at(10 * kPage)), SH_OK);
    EXPECT_EQ(ranges.add(at(30 * kPage), 3 * kPage), SH_OK);
}

}  // namespace
}  // namespace stagehand::support
