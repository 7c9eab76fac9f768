// Budget arithmetic: the contract of the functions, and the division compared with a division page by page.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "policy/budget.h"

namespace stagehand::policy::test {
namespace {

constexpr uint64_t GiB = uint64_t{1} << 30, MiB = uint64_t{1} << 20;

TEST(Budget, AutomaticIsWhatIsFreeLessTheHeadroom) {
    EXPECT_EQ(79 * GiB, automatic_budget(80 * GiB));
    EXPECT_EQ(78 * GiB, automatic_budget(80 * GiB, 0, 2 * GiB));
    EXPECT_EQ(89 * GiB, automatic_budget(80 * GiB, 10 * GiB));
    EXPECT_EQ(0u, automatic_budget(GiB / 2));
    EXPECT_EQ(80 * GiB, automatic_budget(80 * GiB, 0, 0));
    EXPECT_EQ(UINT64_MAX - GiB, automatic_budget(UINT64_MAX, 5));
}

TEST(Budget, GrowthStopsAtWhatIsFreeLessTheReserve) {
    EXPECT_EQ(20 * GiB, clamp_growth(20 * GiB, 4 * GiB, 40 * GiB)) << "room enough";
    EXPECT_EQ(4 * GiB + 1536 * MiB, clamp_growth(20 * GiB, 4 * GiB, 2 * GiB));
    EXPECT_EQ(4 * GiB, clamp_growth(20 * GiB, 4 * GiB, 100 * MiB)) << "what is held stays";
    EXPECT_EQ(4 * GiB, clamp_growth(GiB, 4 * GiB, 40 * GiB)) << "this is about growth only";
    EXPECT_EQ(5 * GiB, clamp_growth(20 * GiB, 4 * GiB, 2 * GiB, GiB));
    EXPECT_EQ(UINT64_MAX, clamp_growth(UINT64_MAX, 2 * GiB, UINT64_MAX, 0));
}

// Less than a 64th of any size is lost, or less than a page.
TEST(Budget, WhatIsNoticedIsNearlyAllThatIsThere) {
    constexpr uint64_t page = 4096;
    EXPECT_EQ(0u, noticed(0, page));
    EXPECT_EQ(0u, noticed(page - 1, page));
    EXPECT_EQ(UINT64_MAX / (uint64_t{1} << 57) << 57, noticed(UINT64_MAX, page));
    std::mt19937_64 random(7);
    for (int k = 0; k < 10'000; k++) {
        const uint64_t bytes = random() >> random() % 64, seen = noticed(bytes, page);
        ASSERT_LE(seen, bytes);
        ASSERT_LE(bytes - seen, std::max(page - 1, bytes / 64)) << bytes;
        ASSERT_EQ(seen % page, 0u);
        ASSERT_LE(seen, noticed(bytes + random() % 1000, page)) << "it falls with what is there only";
        ASSERT_EQ(seen, noticed(seen, page));
    }
}

using Pages = std::vector<uint64_t>;

TEST(Divide, KeepsItsPromisesOnRandomRequests) {
    std::mt19937_64 random(61);
    for (int round = 0; round < 20'000; round++) {
        const bool huge = round % 10 == 0;
        std::vector<Request> requests(1 + random() % 8);
        uint64_t minima = 0, wanted = 0;
        for (Request& request : requests) {
            request.min_pages = random() % (huge ? uint64_t{1} << 50 : 20);
            request.want_pages = random() % (huge ? uint64_t{1} << 55 : 60);
            request.weight =
                random() % 5 ? static_cast<double>(random() % 1000) / 7 : std::pow(10, double(random() % 40) - 20);
            minima += request.min_pages;
            wanted += std::max(request.min_pages, request.want_pages);
        }
        const uint64_t total = random() % (wanted + 10);
        auto given = divide(total, requests);
        ASSERT_EQ(total >= minima, given.has_value()) << "round " << round;
        if (!given) continue;
        ASSERT_EQ(given, divide(total, requests));
        uint64_t sum = 0;
        for (size_t k = 0; k < requests.size(); k++) {
            ASSERT_GE((*given)[k], requests[k].min_pages);
            ASSERT_LE((*given)[k], std::max(requests[k].min_pages, requests[k].want_pages));
            sum += (*given)[k];
        }
        ASSERT_EQ(std::min(total, wanted), sum) << "all is handed out; round " << round;
        // In proportion: a claim that could take more is never more than a page behind another claim, by weight.
        if (huge) continue;
        for (size_t a = 0; a < requests.size(); a++)
            for (size_t b = 0; b < requests.size(); b++) {
                if ((*given)[a] >= requests[a].want_pages || !(requests[a].weight > 0)) continue;
                double more_a = static_cast<double>((*given)[a] - requests[a].min_pages) + 1;
                double more_b = static_cast<double>((*given)[b] - requests[b].min_pages) - 1;
                ASSERT_GE(more_a * requests[b].weight * (1 + 1e-9), more_b * requests[a].weight) << "round " << round;
            }
    }
}

}  // namespace
}  // namespace stagehand::policy::test
