// Parts of one range, against a plain list of what is taken.
#include "backend/lent_memory.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace stagehand {
namespace {

TEST(LentMemoryParts, NeverOverlapAndComeBackWhole) {
    constexpr uint64_t kBegin = 256 * 1000, kBytes = 256 * 1024;
    LentMemory memory(kBegin, kBytes);
    std::mt19937 random(1);
    std::vector<std::pair<uint64_t, uint64_t>> taken;
    uint64_t refused = 0;
    for (int round = 0; round < 20'000; round++) {
        uint64_t used = 0;
        for (const auto& each : taken) used += each.second;
        ASSERT_EQ(memory.free_bytes(), kBytes - used);
        if (random() % 2 && !taken.empty()) {
            const size_t which = random() % taken.size();
            ASSERT_TRUE(memory.give_back(taken[which].first, taken[which].second).ok());
            taken.erase(taken.begin() + static_cast<long>(which));
            continue;
        }
        const uint64_t bytes = 1 + random() % 30'000, alignment = uint64_t(256) << random() % 5;
        uint64_t address = 0;
        const Status status = memory.take(bytes, alignment, &address);
        if (!status.ok()) {
            EXPECT_EQ(status.code(), SH_ERROR_OUT_OF_DEVICE_MEMORY);
            refused++;
            continue;
        }
        ASSERT_EQ(address % alignment, 0u);
        ASSERT_GE(address, kBegin);
        ASSERT_LE(address + bytes, kBegin + kBytes);
        for (const auto& [other, size] : taken) ASSERT_TRUE(address + bytes <= other || other + size <= address);
        taken.emplace_back(address, bytes);
    }
    EXPECT_GT(refused, 10u);
    for (const auto& [address, bytes] : taken) ASSERT_TRUE(memory.give_back(address, bytes).ok());
    uint64_t all = 0;
    ASSERT_TRUE(memory.take(kBytes, 256, &all).ok()) << "the gaps have grown together";
    EXPECT_EQ(all, kBegin);
}

}  // namespace
}  // namespace stagehand
