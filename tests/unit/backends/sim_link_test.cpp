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

TEST(SimLinks, AGapIsUsedByWhatFits) {
    Links links(settings());
    EXPECT_EQ(links.copy(Direction::to_device, 0, 1000, 100), 1100u);
    EXPECT_EQ(links.copy(Direction::to_device, 0, 0, 300), 300u) << "it need not wait for the one ahead";
    EXPECT_EQ(links.copy(Direction::to_device, 0, 0, 800), 1900u) << "too long for the gap";
    EXPECT_EQ(links.copy(Direction::to_device, 0, 0, 700), 1000u) << "exactly the gap";
    EXPECT_EQ(links.copy(Direction::to_device, 0, 0, 1), 1901u);
}

}  // namespace
}  // namespace stagehand::sim
