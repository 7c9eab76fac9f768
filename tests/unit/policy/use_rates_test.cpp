// The values of members, compared with how often they are really used, and the tree that finds the largest rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "member_traces.h"
#include "policy/use_rates.h"
#include "policy/winner_tree.h"

namespace stagehand::policy::test {
namespace {

// The highest values add up to the hits of a cache of that many slots.
TEST(UseRates, PredictTheHitsOfACache) {
    for (const Routing routing : {Routing::uniform, Routing::zipf, Routing::sticky, Routing::sticky_zipf}) {
        SCOPED_TRACE(name(routing));
        const Calls calls = Router(routing, {8, 64, 4}, 9).calls(400);
        for (const uint32_t slots : {128u, 256u, 384u}) {
            MemberCache cache(8, 64, slots);
            const double hits = 8 * 4 - misses_of(cache, calls, 200);
            std::vector<double> values;
            for (uint32_t member = 0; member < calls.shape.members(); member++) values.push_back(cache.value(member));
            std::ranges::sort(values, std::greater<>());
            EXPECT_NEAR(std::accumulate(values.begin(), values.begin() + slots, 0.0), hits, 0.15 * hits) << slots;
        }
    }
}

TEST(UseRates, KnowAMemberThatIsAlwaysUsedAndOneThatNeverIs) {
    std::mt19937 random(2);
    UseRates rates(1, 8);
    for (int k = 0; k < 200; k++) rates.count(0, std::vector<uint32_t>{0, static_cast<uint32_t>(1 + random() % 6)});
    EXPECT_GT(rates.value(0), 0.9);
    EXPECT_LT(rates.value(7), 0.1);
    EXPECT_GT(rates.value(7), 0);
}

// A prompt uses almost all members, and tells little about the tokens after it.
TEST(UseRates, APromptDoesNotWipeOutWhatIsKnown) {
    std::mt19937 random(3);
    UseRates rates(1, 32);
    for (int k = 0; k < 300; k++)
        rates.count(
            0, std::vector<uint32_t>{static_cast<uint32_t>(random() % 2), static_cast<uint32_t>(2 + random() % 30)});
    std::vector<uint32_t> all(32);
    std::iota(all.begin(), all.end(), 0);
    for (int k = 0; k < 4; k++) rates.count(0, all);
    EXPECT_NEAR(rates.value(0), 0.5, 0.15);
    EXPECT_NEAR(rates.value(20), 1 / 30.0, 0.05);
}

TEST(WinnerTree, FindsTheSameAsASearch) {
    std::mt19937 random(2);
    for (const uint32_t count : {1u, 2u, 3u, 16u, 37u}) {
        WinnerTree tree(count);
        EXPECT_FALSE(tree.winner());
        std::vector<double> ranks(count, WinnerTree::kOut);
        for (int k = 0; k < 500; k++) {
            const uint32_t first = random() % count, last = first + random() % (count - first);
            for (uint32_t i = first; i <= last; i++) {
                ranks[i] = random() % 3 ? static_cast<double>(random() % 20) : WinnerTree::kOut;
                if (k % 2)
                    tree.put(i, ranks[i]);
                else
                    tree.set(i, ranks[i]);
            }
            if (k % 2) tree.update(first, last);
            const auto best = static_cast<uint32_t>(std::max_element(ranks.begin(), ranks.end()) - ranks.begin());
            if (ranks[best] == WinnerTree::kOut)
                ASSERT_FALSE(tree.winner());
            else
                ASSERT_EQ(tree.winner(), best);
        }
    }
}

}  // namespace
}  // namespace stagehand::policy::test
