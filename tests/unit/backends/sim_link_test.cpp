#include "sim/link.h"

#include <gtest/gtest.h>

namespace stagehand::sim {
namespace {

Settings settings(double duplex = 2, uint64_t latency_ns = 0) {
    Settings result;
    result.bandwidth = 1000000000;  // a byte a nanosecond
    result.duplex = duplex;
    result.latency_ns = latency_ns;
    return result;
}

TEST(SimLinks, CopiesFollowEachOther) {
    Links links(settings(2, 10));
    EXPECT_EQ(links.copy(Direction::to_device, 0, 0, 100), 110u);
    EXPECT_EQ(links.copy(Direction::to_device, 0, 0, 100), 220u);
    EXPECT_EQ(links.copy(Direction::to_device, 0, 500, 100), 610u);
    EXPECT_EQ(links.copy(Direction::to_host, 0, 0, 100), 110u) << "the other direction is free";
}

TEST(SimLinks, AGapIsUsedByWhatFits) {
    Links links(settings());
    EXPECT_EQ(links.copy(Direction::to_device, 0, 1000, 100), 1100u);
    EXPECT_EQ(links.copy(Direction::to_device, 0, 0, 300), 300u) << "it need not wait for the one ahead";
    EXPECT_EQ(links.copy(Direction::to_device, 0, 0, 800), 1900u) << "too long for the gap";
    EXPECT_EQ(links.copy(Direction::to_device, 0, 0, 700), 1000u) << "exactly the gap";
    EXPECT_EQ(links.copy(Direction::to_device, 0, 0, 1), 1901u);
}

TEST(SimLinks, WhatIsPastIsForgotten) {
    Links links(settings());
    EXPECT_EQ(links.copy(Direction::to_device, 0, 0, 100), 100u);
    EXPECT_EQ(links.copy(Direction::to_device, 200, 200, 100), 300u);
}

TEST(SimLinks, HalfDuplexTakesTurns) {
    Links links(settings(1));
    EXPECT_EQ(links.copy(Direction::to_device, 0, 0, 100), 100u);
    EXPECT_EQ(links.copy(Direction::to_host, 0, 0, 100), 200u);
    EXPECT_EQ(links.copy(Direction::to_host, 0, 0, 100), 300u);
}

TEST(SimLinks, BetweenTheTwoTheSecondGetsTheRest) {
    Links links(settings(1.5));
    EXPECT_EQ(links.copy(Direction::to_device, 0, 100, 100), 200u);
    // 100 alone, then half speed for 100 ns, then alone again.
    EXPECT_EQ(links.copy(Direction::to_host, 0, 0, 200), 250u);
    Links within(settings(1.5));
    EXPECT_EQ(within.copy(Direction::to_device, 0, 0, 1000), 1000u);
    EXPECT_EQ(within.copy(Direction::to_host, 0, 100, 100), 300u) << "all of it at half speed";
}

TEST(SimLinks, EmptyCopiesTakeOnlyTheLatency) {
    Links links(settings(2, 5));
    EXPECT_EQ(links.copy(Direction::to_device, 0, 0, 0), 5u);
    Links free_of_latency(settings());
    EXPECT_EQ(free_of_latency.copy(Direction::to_device, 0, 7, 0), 7u);
}

}  // namespace
}  // namespace stagehand::sim
