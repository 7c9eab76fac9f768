// Layouts and families: their promises about places and sums.
#include <gtest/gtest.h>

#include "policy/families.h"
#include "policy/layout.h"
#include "policy/programme.h"
#include "problems.h"

namespace stagehand::policy::test {
namespace {

bool meet(const UnitPlan& a, const UnitPlan& b, uint32_t ring) {
    for (uint32_t k = 0; k < a.streamed_pages; k++)
        for (uint32_t m = 0; m < b.streamed_pages; m++)
            if ((a.ring_offset + k) % ring == (b.ring_offset + m) % ring) return true;
    return false;
}

bool held_units_meet(const Case& c, const std::vector<UnitPlan>& units, uint32_t ring) {
    const size_t length = c.trace.size();
    for (size_t j = 0; j < length; j++)
        for (size_t d = 1; d < c.max_held; d++) {
            uint32_t a = c.trace[j].unit, b = c.trace[(j + d) % length].unit;
            if (a != b && meet(units[a], units[b], ring)) return true;
        }
    return false;
}

TEST(Layout, KeepsUnitsHeldTogetherApartOrSaysThatItCannot) {
    std::mt19937 random(11);
    int placed[4] = {}, refused = 0;
    for (int k = 0; k < 4000; k++) {
        Case c = small_random(random, 7, 6);
        c.max_held = 1 + random() % 3;
        Problem problem = c.problem();
        Shape shape(problem);
        std::vector<UnitPlan> units(c.units.size());
        uint32_t ring = 1 + random() % 24;
        for (uint32_t u : shape.order) units[u].streamed_pages = std::min(ring, static_cast<uint32_t>(random() % 7));
        Layout layout = static_cast<Layout>(random() % 4);
        StepProgramme programme;
        bool possible = lay_out(shape, layout, ring, units);
        bool runs = possible && ProgrammeTracer(shape).trace(units, ring, programme);
        for (uint32_t u : shape.order) ASSERT_LT(units[u].ring_offset, ring);
        ASSERT_EQ(runs, possible && !held_units_meet(c, units, ring)) << "instance " << k;
        // These two look where they step.
        if (layout == Layout::rotating || layout == Layout::two_ended) {
            ASSERT_EQ(possible, runs) << "instance " << k;
        }
        (runs ? placed[static_cast<int>(layout)] : refused)++;
    }
    for (int count : placed) EXPECT_GT(count, 300);
    EXPECT_GT(refused, 300);
}

TEST(Layout, OfTheTightestRingIsOneThatFits) {
    std::mt19937 random(13);
    int other = 0;
    for (int k = 0; k < 4000; k++) {
        Case c = small_random(random, 8, 6);
        c.max_held = 2 + random() % 3;
        if (random() % 4 == 0) c.in_one_piece();
        Problem problem = c.problem();
        Shape shape(problem);
        const TightRing tight = tightest_ring(shape);
        std::vector<UnitPlan> units(c.units.size());
        for (uint32_t u : shape.order) units[u].streamed_pages = shape.pages[u];
        StepProgramme programme;
        ASSERT_TRUE(lay_out(shape, tight.layout, tight.pages, units)) << "instance " << k;
        ASSERT_TRUE(ProgrammeTracer(shape).trace(units, tight.pages, programme)) << "instance " << k;
        other += tight.layout != Layout::packed;
    }
    EXPECT_GT(other, 100);
}

TEST(Families, AddUpToWhatIsAskedWithinTheRing) {
    std::mt19937 random(13);
    int made = 0, refused = 0;
    for (int k = 0; k < 1500; k++) {
        Case c = k % 3 ? small_random(random, 8, 9) : unequal(2 + random() % (k % 10 ? 60 : 1500), k);
        if (k % 3 == 0) {
            c.budget_pages = 1;
            c.set_compute(1, Compute::random, k);
        }
        Problem problem = c.problem();
        Shape shape(problem);
        PartsMaker maker(shape);
        Family family = all_families[random() % std::size(all_families)];
        uint64_t streamed = 1 + random() % shape.total_pages;
        uint32_t ring = 1 + random() % (2 * *std::max_element(shape.pages.begin(), shape.pages.end()) * shape.held);
        auto parts = maker.make(family, streamed, ring);
        if (!parts) {
            refused++;
            continue;
        }
        made++;
        uint64_t sum = 0;
        bool all_whole = family == Family::whole_units;
        uint32_t largest_whole = 0;
        for (size_t u = 0; u < c.units.size(); u++) {
            uint32_t part = (*parts)[u];
            sum += part;
            ASSERT_LE(part, shape.pages[u]);
            ASSERT_TRUE(!c.units[u].whole || part == 0 || part == shape.pages[u]) << "instance " << k;
            if (c.units[u].whole || all_whole) largest_whole = std::max(largest_whole, shape.pages[u]);
        }
        ASSERT_GE(sum, streamed) << "instance " << k;
        ASSERT_LE(sum, streamed + largest_whole) << "instance " << k;
        ASSERT_LE(widest_window(shape, *parts).pages, ring) << "instance " << k;
    }
    EXPECT_GT(made, 500);
    EXPECT_GT(refused, 50);
}

TEST(Families, TheSmallestRingIsTheSmallest) {
    std::mt19937 random(14);
    int compared = 0;
    for (int k = 0; k < 400; k++) {
        Case c = small_random(random, 6, 8);
        c.max_held = 1;
        Problem problem = c.problem();
        Shape shape(problem);
        PartsMaker maker(shape);
        uint32_t widest = static_cast<uint32_t>(widest_window(shape, shape.pages).pages);
        if (widest >= shape.total_pages) continue;
        uint32_t budget = widest + random() % (shape.total_pages - widest);
        uint32_t ring = maker.smallest_ring(budget);
        compared++;
        if (!shape.has_whole) {
            ASSERT_TRUE(maker.make(Family::level, shape.total_pages - budget + ring, ring)) << "instance " << k;
        }
        for (uint32_t below = 1; below < ring; below++)
            ASSERT_FALSE(maker.make(Family::level, shape.total_pages - budget + below, below)) << "instance " << k;
    }
    EXPECT_GT(compared, 200);
}

}  // namespace
}  // namespace stagehand::policy::test
