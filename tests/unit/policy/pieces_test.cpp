// The division of a load into pieces, and the owners of the ring's pages, compared with models that look at each page.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "policy/pieces.h"
#include "policy/ring_owners.h"

namespace stagehand::policy::test {
namespace {

std::vector<PageRun> cut(std::vector<PageRun> runs) {
    cut_load(runs);
    return runs;
}

using Runs = std::vector<PageRun>;

TEST(CutLoad, MergesThoseThatHoldUpTheFewestPages) {
    EXPECT_EQ((Runs{{0, 9, 1}, {9, 9, 2}, {18, 3, 4}, {21, 9, 5}}),
              cut({{0, 9, 1}, {9, 9, 2}, {18, 1, 3}, {19, 2, 4}, {21, 9, 5}}));
    EXPECT_EQ((Runs{{0, 9, 1}, {9, 9, 2}, {18, 9, 3}, {27, 10, 5}}),
              cut({{0, 9, 1}, {9, 9, 2}, {18, 9, 3}, {27, 1, 4}, {28, 9, 5}}));
}

TEST(CutLoad, CoversTheSamePagesUnderFencesThatHold) {
    std::mt19937 random(3);
    for (int round = 0; round < 5000; round++) {
        Runs runs;
        uint32_t page = random() % 3, segments = 0;
        const uint32_t count = 1 + random() % (round % 10 ? 10 : 400);
        const bool gaps = random() % 2;
        for (uint32_t k = 0; k < count; k++) {
            bool gap = gaps && random() % 4 == 0;
            if (gap) page += 1 + random() % 3;
            segments += gap || k == 0;
            runs.push_back({page, static_cast<uint32_t>(1 + random() % 9), random() % 30});
            page += runs.back().pages;
        }
        std::map<uint32_t, uint64_t> fence;
        for (const PageRun& run : runs)
            for (uint32_t k = 0; k < run.pages; k++) fence[run.first + k] = run.fence;
        Runs pieces = cut(runs);
        ASSERT_LE(pieces.size(), std::max(most_pieces_per_load, segments));
        size_t covered = 0;
        for (size_t k = 0; k < pieces.size(); k++) {
            ASSERT_LE(pieces[k ? k - 1 : 0].fence, pieces[k].fence);
            uint64_t latest = 0;
            for (uint32_t p = pieces[k].first; p < pieces[k].first + pieces[k].pages; p++) {
                ASSERT_TRUE(fence.count(p)) << "copies a page that is there, or twice";
                latest = std::max(latest, fence[p]);
                fence.erase(p);
                covered++;
            }
            ASSERT_EQ(latest, pieces[k].fence);
        }
        ASSERT_TRUE(fence.empty());
        ASSERT_GT(covered, 0u);
    }
}

TEST(RingOwners, AgreeWithAnArrayOfPages) {
    std::mt19937 random(4);
    RingOwners owners;
    for (int round = 0; round < 300; round++) {
        const uint32_t pages = 1 + random() % (round % 3 ? 12 : 400);
        owners.reset(pages);
        std::vector<uint32_t> array(pages, RingOwners::nobody);
        for (int k = 0; k < 60; k++) {
            const uint32_t offset = random() % pages, count = random() % (pages + 1), owner = random() % 9;
            std::vector<uint32_t> seen;
            owners.visit(offset, count, [&](uint32_t first, uint32_t run, uint32_t who) {
                ASSERT_EQ(first, seen.size());
                ASSERT_GT(run, 0u);
                seen.insert(seen.end(), run, who);
            });
            ASSERT_EQ(count, seen.size());
            for (uint32_t p = 0; p < count; p++) ASSERT_EQ(array[(offset + p) % pages], seen[p]);
            owners.take(offset, count, owner);
            for (uint32_t p = 0; p < count; p++) array[(offset + p) % pages] = owner;
        }
    }
}

}  // namespace
}  // namespace stagehand::policy::test
