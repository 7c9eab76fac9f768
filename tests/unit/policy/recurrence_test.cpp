// Compares the recurrence with a simulation that is written differently.
#include <gtest/gtest.h>

#include "policy/bounds.h"
#include "policy/recurrence.h"
#include "problems.h"
#include "reference_simulator.h"

namespace stagehand::policy::test {
namespace {

// Makes random parts, ring and offsets. Most of these plans are bad.
Plan random_plan(const Case& c, std::mt19937& random) {
    Plan plan;
    plan.ring_pages = 1 + random() % 8;
    for (const Unit& unit : c.units) {
        uint32_t pages = static_cast<uint32_t>((unit.bytes + c.page_bytes - 1) / c.page_bytes);
        bool used =
            std::any_of(c.trace.begin(), c.trace.end(), [&](const Use& use) { return &c.units[use.unit] == &unit; });
        if (!used) pages = 0;
        uint32_t streamed = std::min<uint32_t>(random() % (pages + 1), plan.ring_pages);
        if (unit.whole) streamed = random() % 2 && pages <= plan.ring_pages ? pages : 0;
        plan.units.push_back({pages - streamed, streamed, static_cast<uint32_t>(random() % plan.ring_pages)});
        plan.resident_pages += pages - streamed;
    }
    return plan;
}

TEST(Recurrence, AgreesWithASimulationPageByPage) {
    std::mt19937 random(1);
    int ran = 0, refused = 0, pieces = 0;
    for (int k = 0; k < 6000; k++) {
        Case c = small_random(random, 7, 9);
        if (k % 3 == 2) c.add_gaps(random);
        if (k % 5 == 4) c.add_slow_sources(random);
        if (k % 2) c.add_changes(random);
        Plan plan = random_plan(c, random);
        Problem problem = c.problem();
        std::optional<Simulation> simulation = simulate(problem, plan, 12);
        ReferenceSimulator reference(problem, plan);
        auto uses = reference.run(simulation ? simulation->steps : 3);
        ASSERT_EQ(simulation.has_value(), uses.has_value()) << "instance " << k;
        if (!simulation) {
            refused++;
            continue;
        }
        ran++;
        const size_t length = c.trace.size();
        const size_t last = uses->size() - length;
        uint64_t bytes = 0;
        for (size_t j = 0; j < length; j++) {
            const ReferenceUse& expected = (*uses)[last + j];
            const UseTimes& got = simulation->last_step[j];
            bytes += expected.bytes;
            pieces += expected.copies > 1;
            ASSERT_EQ(expected.copies, got.copies) << "instance " << k << " use " << j;
            ASSERT_EQ(expected.load_start, got.load_start) << "instance " << k << " use " << j;
            ASSERT_EQ(expected.load_end, got.load_end) << "instance " << k << " use " << j;
            ASSERT_EQ(expected.compute_start, got.compute_start) << "instance " << k << " use " << j;
            ASSERT_EQ(expected.compute_end, got.compute_end) << "instance " << k << " use " << j;
        }
        ASSERT_EQ(bytes, simulation->bytes_per_step) << "instance " << k;
    }
    EXPECT_GT(ran, 4000);
    EXPECT_GT(refused, 100);
    EXPECT_GT(pieces, 1000);
}

TEST(Recurrence, FindsThePeriodThatALongRunAverages) {
    std::mt19937 random(2);
    for (int k = 0; k < 400; k++) {
        Case c = small_random(random, 6, 6);
        Plan plan = random_plan(c, random);
        Problem problem = c.problem();
        std::optional<Simulation> simulation = simulate(problem, plan, 400);
        if (!simulation) continue;
        ASSERT_TRUE(simulation->periodic) << "instance " << k;
        auto uses = ReferenceSimulator(problem, plan).run(600);
        const size_t length = c.trace.size();
        double mean = ((*uses)[600 * length - 1].compute_end - (*uses)[120 * length - 1].compute_end) / 480;
        // 480 is a multiple of every period that occurs here.
        ASSERT_NEAR(mean, simulation->step_ns, 1e-9 * mean) << "instance " << k;
        ASSERT_DOUBLE_EQ(simulation->stall_ns, std::max(0.0, simulation->step_ns - c.compute_ns()));
    }
}

// Equal units of ten pages of 1000 ns, all streamed through a ring.
Case equal_units(uint32_t count, uint64_t compute_ns) {
    Case c;
    c.page_bytes = 1000;
    c.link = 1;
    for (uint32_t u = 0; u < count; u++) {
        c.units.push_back({10'000});
        c.trace.push_back({u, compute_ns});
    }
    return c;
}

Plan packed(const Case& c, uint32_t ring, uint32_t part = 10) {
    Plan plan;
    plan.ring_pages = ring;
    for (uint32_t u = 0; u < c.units.size(); u++) plan.units.push_back({10 - part, part, u * part % ring});
    plan.resident_pages = (10 - part) * c.units.size();
    return plan;
}

TEST(Recurrence, RefusesWhatCannotRun) {
    Case c = equal_units(4, 100);
    EXPECT_TRUE(simulate(c.problem(), packed(c, 10), 5));
    c.max_held = 2;
    EXPECT_FALSE(simulate(c.problem(), packed(c, 10), 5)) << "two units held together share pages";
    EXPECT_TRUE(simulate(c.problem(), packed(c, 20), 5));
    c.max_held = 3;
    EXPECT_FALSE(simulate(c.problem(), packed(c, 30), 5)) << "at the seam";
    EXPECT_TRUE(simulate(c.problem(), packed(c, 40), 5));
    c.max_held = 1;
    Plan plan = packed(c, 10);
    plan.units[1].streamed_pages = 9;
    EXPECT_FALSE(simulate(c.problem(), plan, 5)) << "a page is neither resident nor streamed";
    plan = packed(c, 10);
    plan.ring_pages = 9;
    EXPECT_FALSE(simulate(c.problem(), plan, 5)) << "a part is larger than the ring";
    plan = packed(c, 10);
    plan.units.pop_back();
    EXPECT_FALSE(simulate(c.problem(), plan, 5)) << "a unit has no plan";
    c.link = 0;
    EXPECT_FALSE(simulate(c.problem(), packed(c, 10), 5)) << "no link";
}

TEST(Recurrence, AnEmptyTraceTakesNoTime) {
    Case c = equal_units(2, 0);
    c.trace.clear();
    Plan plan;
    plan.units.resize(2);
    auto simulation = simulate(c.problem(), plan, 5);
    ASSERT_TRUE(simulation);
    EXPECT_EQ(0, simulation->step_ns);
    EXPECT_EQ(0u, simulation->bytes_per_step);
}

}  // namespace
}  // namespace stagehand::policy::test
