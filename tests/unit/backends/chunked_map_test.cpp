#include "support/chunked_map.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace stagehand::support {
namespace {

TEST(ChunkedMap, FindsWhatWasInserted) {
    ChunkedMap<int> map;
    EXPECT_EQ(map.find(0), nullptr);
    map.insert(0, 7);
    map.insert(63, 8);
    map.insert(64, 9);
    map.insert(UINT64_MAX, 10);
    ASSERT_NE(map.find(0), nullptr);
    EXPECT_EQ(*map.find(0), 7);
    EXPECT_EQ(*map.find(63), 8);
    EXPECT_EQ(*map.find(64), 9);
    EXPECT_EQ(*map.find(UINT64_MAX), 10);
    EXPECT_EQ(map.find(1), nullptr);
    EXPECT_EQ(map.find(65), nullptr);
    EXPECT_EQ(map.size(), 4u);
}

TEST(ChunkedMap, AgreesWithAnOrdinaryMap) {
    ChunkedMap<uint64_t> map;
    std::map<uint64_t, uint64_t> reference;
    std::mt19937_64 random(1);
    for (int i = 0; i < 100000; ++i) {
        const uint64_t key = random() % 1000 * (random() % 3 == 0 ? 1 : 64);
        if (random() % 2) {
            const uint64_t value = random();
            map.insert(key, value);
            reference[key] = value;
        } else {
            map.erase(key);
            reference.erase(key);
        }
        const uint64_t wanted = random() % 64000;
        const auto expected = reference.find(wanted);
        const uint64_t* const found = map.find(wanted);
        ASSERT_EQ(found != nullptr, expected != reference.end());
        if (found) {
            ASSERT_EQ(*found, expected->second);
        }
        ASSERT_EQ(map.size(), reference.size());
    }
}

}  // namespace
}  // namespace stagehand::support
