// Where a block is cut that the engine uses part by part, and what that saves.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "policy/bounds.h"
#include "policy/cuts.h"
#include "problems.h"

namespace stagehand::policy::test {
namespace {

TEST(Cuts, CoverTheBlockInUnits) {
    std::mt19937_64 random(7);
    for (int round = 0; round < 20'000; round++) {
        const uint64_t bytes = 1 + random() % 5000, unit = 1 + random() % (random() % 2 ? 20 : 6000);
        const uint64_t largest = 1 + random() % 6000, most = 1 + random() % 40;
        const std::vector<Cut> cuts = cut(bytes, unit, largest, most);
        ASSERT_GE(cuts.size(), 1u);
        ASSERT_LE(cuts.size(), most);
        uint64_t end = 0, shortest = UINT64_MAX, longest = 0;
        for (const Cut& each : cuts) {
            ASSERT_EQ(each.offset, end);
            ASSERT_EQ(each.offset % unit, 0u);
            ASSERT_GT(each.bytes, 0u);
            const bool enough = cuts.size() < most;
            ASSERT_TRUE(!enough || each.bytes <= std::max(largest, unit));
            end += each.bytes;
            const uint64_t units = (each.bytes + unit - 1) / unit;
            shortest = std::min(shortest, units);
            longest = std::max(longest, units);
        }
        ASSERT_EQ(end, bytes);
        ASSERT_LE(longest - shortest, 1u) << "the parts are not equal";
        const uint64_t units_of_part = std::max<uint64_t>(1, largest / unit), units = (bytes + unit - 1) / unit;
        ASSERT_EQ(cuts.size(), std::min(most, (units + units_of_part - 1) / units_of_part)) << "more than it takes";
    }
}

TEST(Cuts, OfTheLargestSizesDoNotOverflow) {
    const std::vector<Cut> one = cut(uint64_t{1} << 46, UINT64_MAX, UINT64_MAX, 9);
    ASSERT_EQ(one.size(), 1u);
    EXPECT_EQ(one[0].bytes, uint64_t{1} << 46);
    EXPECT_EQ(cut(uint64_t{1} << 46, 3, 1, 5).size(), 5u);
}

// The plan of a block-wise pass, with compute as long as the copies of what the budget has no room for.
double time_over_bound(const Case& c) {
    const auto made = make_plan(c.problem());
    return std::get<Plan>(made).step_ns / simple_step_ns(c.problem());
}

Case in_parts(const Case& whole) {
    Case parts = whole;
    parts.units.clear();
    const uint64_t largest = largest_part(whole.budget_pages, whole.page_bytes);
    for (const Unit& unit : whole.units)
        for (const Cut& each : cut(unit.bytes, 8192, largest, 1000)) parts.units.push_back({each.bytes});
    parts.forward();
    parts.set_compute(1, Compute::by_size);
    return parts;
}

TEST(Cuts, TakeAwayWhatTheLargestBlockCosts) {
    Case whole;
    whole.page_bytes = 2 * MiB;
    whole.units.push_back({1050 * MiB});
    for (int layer = 0; layer < 20; layer++) whole.units.push_back({423 * MiB});
    whole.units.push_back({1050 * MiB});
    whole.forward();
    for (const double part : {0.17, 0.4, 0.67, 0.85, 0.95}) {
        whole.set_budget(part);
        whole.set_compute(1, Compute::by_size);
        const double before = time_over_bound(whole), after = time_over_bound(in_parts(whole));
        EXPECT_GE(before, 1.19) << part;
        EXPECT_LE(after, 1.03) << part;
    }
    // And less memory is enough.
    whole.set_budget(0.08);
    EXPECT_GT(smallest_budget(whole.problem()).smallest_budget_pages, whole.budget_pages);
    EXPECT_LE(smallest_budget(in_parts(whole).problem()).smallest_budget_pages, whole.budget_pages / 16);
}

}  // namespace
}  // namespace stagehand::policy::test
