// Where a block is cut that the engine uses part by part.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "policy/cuts.h"

namespace stagehand::policy::test {
namespace {

TEST(Cuts, CoverTheBlockInUnits) {
    std::mt19937_64 random(7);
    for (int round = 0; round < 20'000; round++) {
        const uint64_t bytes = 1 + random() % 5000, unit = 1 + random() % (random() % 2 ? 20 : 6000);
        const uint64_t largest = 1 + random() % 6000, most = 1 + random() % 40;
        const std::vector<Cut> cuts = cut(bytes, unit, largest, most);
        ASSERT_GE(cuts.size(), 1u);
        ASSERT_LE(cuts.size(), most);
        uint64_t end = 0, shortest = UINT64_MAX, longest = 0;
        for (const Cut& each : cuts) {
            ASSERT_EQ(each.offset, end);
            ASSERT_EQ(each.offset % unit, 0u);
            ASSERT_GT(each.bytes, 0u);
            const bool enough = cuts.size() < most;
            ASSERT_TRUE(!enough || each.bytes <= std::max(largest, unit));
            end += each.bytes;
            const uint64_t units = (each.bytes + unit - 1) / unit;
            shortest = std::min(shortest, units);
            longest = std::max(longest, units);
        }
        ASSERT_EQ(end, bytes);
        ASSERT_LE(longest - shortest, 1u) << "the parts are not equal";
        const uint64_t units_of_part = std::max<uint64_t>(1, largest / unit), units = (bytes + unit - 1) / unit;
        ASSERT_EQ(cuts.size(), std::min(most, (units + units_of_part - 1) / units_of_part)) << "more than it takes";
    }
}

TEST(Cuts, OfTheLargestSizesDoNotOverflow) {
    const std::vector<Cut> one = cut(uint64_t{1} << 46, UINT64_MAX, UINT64_MAX, 9);
    ASSERT_EQ(one.size(), 1u);
    EXPECT_EQ(one[0].bytes, uint64_t{1} << 46);
    EXPECT_EQ(cut(uint64_t{1} << 46, 3, 1, 5).size(), 5u);
}

}  // namespace
}  // namespace stagehand::policy::test
