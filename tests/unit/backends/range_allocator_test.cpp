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
