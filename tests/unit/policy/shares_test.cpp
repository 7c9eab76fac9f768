// The pages that each model holds for certain, and the pages that guests take.
#include "policy/shares.h"

#include <limits>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace stagehand::policy {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

Claim runs(uint64_t least, uint64_t wanted, double next_step_ns = 0) {
    Claim claim;
    claim.runs = true;
    claim.least_pages = least;
    claim.wanted_pages = wanted;
    claim.next_step_ns = next_step_ns;
    return claim;
}

Claim with_reservation(Claim claim, uint64_t pages, Priority priority) {
    claim.reserved_pages = pages;
    claim.priority = priority;
    return claim;
}

Claim guest(uint64_t pages, uint64_t workspace = 0) {
    Claim claim;
    claim.guest = true;
    claim.guest_pages = pages;
    claim.workspace_pages = workspace;
    return claim;
}

uint64_t sum(const std::vector<uint64_t>& pages) { return std::accumulate(pages.begin(), pages.end(), uint64_t{0}); }

TEST(Floors, are_the_most_that_any_reason_asks_for) {
    Claim kept = runs(5, 50);
    kept.kept_pages = 20;
    Claim idle;  // has not asked: what it would need does not count
    idle.least_pages = 30;
    const std::vector<Claim> claims = {runs(5, 50), kept, with_reservation(runs(5, 50), 12, Priority::primary), idle,
                                       guest(8, 3)};
    const auto found = floors(60, claims);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->pages, (std::vector<uint64_t>{5, 20, 12, 0, 8}));
    EXPECT_EQ(found->headroom_pages, 60u - 45 - 3);
    EXPECT_FALSE(floors(47, claims));
    EXPECT_TRUE(floors(48, claims));
}

TEST(Floors, secondary_reservations_give_way_the_furthest_first_and_only_as_far_as_needed) {
    std::vector<Claim> claims = {with_reservation(runs(2, 90, 10), 30, Priority::secondary),
                                 with_reservation(runs(2, 90, kNever), 30, Priority::secondary),
                                 with_reservation(runs(2, 90, 50), 30, Priority::primary)};
    EXPECT_EQ(floors(90, claims)->reserved, (std::vector<uint64_t>{30, 30, 30}));
    EXPECT_EQ(floors(85, claims)->reserved, (std::vector<uint64_t>{30, 25, 30}));
    EXPECT_EQ(floors(62, claims)->pages, (std::vector<uint64_t>{30, 2, 30}));
    EXPECT_EQ(floors(40, claims)->pages, (std::vector<uint64_t>{8, 2, 30}));
    EXPECT_EQ(floors(40, claims)->headroom_pages, 0u);
    EXPECT_FALSE(floors(33, claims)) << "the primary one does not give way";
    claims[1].kept_pages = 20;
    EXPECT_EQ(floors(80, claims)->pages, (std::vector<uint64_t>{30, 20, 30})) << "what is protected stays";
}

TEST(Lend, takes_free_pages_first_then_those_used_last) {
    std::vector<Claim> claims = {runs(2, 40, 100), runs(2, 40, 1000), guest(20, 5)};
    const std::vector<Part> parts = {{0, 10}, {10, 10}, {20, 18}};
    claims[0].parts = claims[1].parts = parts;
    const Floors all = *floors(100, claims);
    const std::vector<uint64_t> divided = {40, 40, 0};
    EXPECT_EQ(lend(105, divided, claims, all), (std::vector<uint64_t>{40, 40, 20})) << "25 are free";
    EXPECT_EQ(lend(100, divided, claims, all), (std::vector<uint64_t>{40, 35, 20}));
    EXPECT_EQ(lend(60, divided, claims, all), (std::vector<uint64_t>{33, 2, 20}))
        << "the next one gives when the first is at its floor";
}

TEST(Lend, what_is_in_no_part_goes_last) {
    std::vector<Claim> claims = {runs(2, 40, 100), runs(2, 40, 1000), guest(60)};
    const std::vector<Part> parts = {{0, 5}};
    claims[0].parts = parts;
    const std::vector<uint64_t> divided = {40, 40, 0};
    EXPECT_EQ(lend(80, divided, claims, *floors(80, claims)), (std::vector<uint64_t>{18, 2, 60}));
}

TEST(Shares, add_up_and_never_fall_below_what_is_certain) {
    std::mt19937 random(11);
    const auto below = [&](uint64_t n) { return std::uniform_int_distribution<uint64_t>(0, n - 1)(random); };
    int possible = 0;
    for (int k = 0; k < 20'000; k++) {
        std::vector<Claim> claims(1 + below(8));
        std::vector<std::vector<Part>> parts(claims.size());
        std::vector<std::vector<CurvePoint>> curves(claims.size());
        for (size_t i = 0; i < claims.size(); i++) {
            Claim& claim = claims[i];
            claim.runs = below(4) != 0;
            claim.guest = below(5) == 0;
            claim.least_pages = below(10);
            claim.wanted_pages = claim.least_pages + below(60);
            claim.kept_pages = below(3) ? 0 : below(12);
            claim.reserved_pages = below(3) ? 0 : below(25);
            claim.priority = claim.reserved_pages == 0 ? Priority::none
                             : below(2)                ? Priority::primary
                                                       : Priority::secondary;
            claim.guest_pages = claim.guest ? claim.least_pages + below(20) : 0;
            claim.workspace_pages = claim.guest ? below(8) : 0;
            claim.steps_per_second = static_cast<double>(below(100));
            claim.next_step_ns = below(6) ? static_cast<double>(below(1000)) : kNever;
            uint64_t due = 0;
            for (uint64_t p = below(5); p > 0; p--) parts[i].push_back({due += below(100), 1 + below(10)});
            curves[i] = {{claim.least_pages, 100.0 + static_cast<double>(below(100))},
                         {claim.wanted_pages + 1, static_cast<double>(below(100))}};
            claim.parts = parts[i];
            claim.curve = curves[i];
        }
        const uint64_t pages = 1 + below(200);
        const auto certain = floors(pages, claims);
        if (!certain) continue;
        possible++;
        uint64_t workspaces = 0;
        for (const Claim& claim : claims) workspaces += claim.guest ? claim.workspace_pages : 0;
        EXPECT_EQ(sum(certain->pages) + workspaces + certain->headroom_pages, pages);
        const std::vector<uint64_t> divided = divide(pages, claims, *certain);
        EXPECT_LE(sum(divided), pages);
        const std::vector<uint64_t> shares = lend(pages, divided, claims, *certain);
        EXPECT_LE(sum(shares) + workspaces, pages);
        for (size_t i = 0; i < claims.size(); i++) {
            EXPECT_GE(shares[i], certain->pages[i]) << k;
            if (claims[i].guest) {
                EXPECT_EQ(shares[i], certain->pages[i]);
                continue;
            }
            EXPECT_LE(shares[i], divided[i]);
            if (claims[i].priority == Priority::primary) {
                EXPECT_GE(shares[i], claims[i].reserved_pages);
            }
        }
        if (HasFailure()) return;
    }
    EXPECT_GT(possible, 5'000);
}

}  // namespace
}  // namespace stagehand::policy
