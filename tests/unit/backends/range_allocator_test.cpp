#include "host/range_allocator.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace stagehand::host {
namespace {

uint64_t take(RangeAllocator& allocator, uint64_t bytes) {
    uint64_t offset = UINT64_MAX;
    EXPECT_TRUE(allocator.take(bytes, &offset));
    return offset;
}

TEST(RangeAllocator, GivesNeighboursOneAfterTheOther) {
    RangeAllocator allocator(100);
    EXPECT_EQ(take(allocator, 10), 0u);
    EXPECT_EQ(take(allocator, 10), 10u);
    EXPECT_EQ(take(allocator, 80), 20u);
    uint64_t offset = 0;
    EXPECT_FALSE(allocator.take(1, &offset));
}

// Prepared ranges may be given back in any order. Neighbours are joined as usual.
TEST(RangeAllocator, GivesBackWhatItHasPreparedFor) {
    RangeAllocator allocator(100);
    take(allocator, 100);
    allocator.prepare(5);
    for (const uint64_t offset : {0, 40, 20, 80, 60, 10, 30, 50, 70, 90}) allocator.give(offset, 10);
    EXPECT_EQ(take(allocator, 100), 0u);
}

TEST(RangeAllocator, TakesTheLowestHoleThatFits) {
    RangeAllocator allocator(1000);
    take(allocator, 100);
    allocator.give(20, 10);
    allocator.give(50, 30);
    EXPECT_EQ(take(allocator, 15), 50u);
    EXPECT_EQ(take(allocator, 10), 20u);
    EXPECT_EQ(take(allocator, 16), 100u);
    EXPECT_EQ(take(allocator, 15), 65u);
}

TEST(RangeAllocator, JoinsHolesOnBothSides) {
    RangeAllocator allocator(100);
    take(allocator, 100);
    allocator.give(0, 10);
    allocator.give(20, 10);
    allocator.give(10, 10);
    EXPECT_EQ(take(allocator, 30), 0u);
}

TEST(RangeAllocator, NeverGivesAnythingTwice) {
    RangeAllocator allocator(1 << 20);
    std::map<uint64_t, uint64_t> taken;
    std::mt19937_64 random(5);
    for (int i = 0; i < 20000; ++i) {
        if (taken.empty() || random() % 2) {
            const uint64_t bytes = 1 + random() % 500;
            uint64_t offset = 0;
            if (!allocator.take(bytes, &offset)) continue;
            const auto next = taken.lower_bound(offset);
            if (next != taken.end()) {
                ASSERT_LE(offset + bytes, next->first);
            }
            if (next != taken.begin()) {
                ASSERT_LE(std::prev(next)->first + std::prev(next)->second, offset);
            }
            taken[offset] = bytes;
        } else {
            auto entry = taken.lower_bound(random() % (1 << 20));
            if (entry == taken.end()) entry = taken.begin();
            allocator.give(entry->first, entry->second);
            taken.erase(entry);
        }
    }
    for (const auto& [offset, bytes] : taken) allocator.give(offset, bytes);
    EXPECT_EQ(take(allocator, 1 << 20), 0u) << "one hole again";
}

}  // namespace
}  // namespace stagehand::host
