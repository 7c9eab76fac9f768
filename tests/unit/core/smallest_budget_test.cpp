// The smallest budget that an error names: the runtime runs with it, before its order is known and afterwards.
#include "base/size_text.h"
#include "engine.h"

namespace stagehand::test {
namespace {

RuntimeSettings options_holding(uint32_t max_held, uint64_t unordered_bytes = 0) {
    return {.unordered_bytes = unordered_bytes, .max_held = max_held};
}

std::string smallest(uint64_t pages) { return "the smallest that works is " + exact_size_text(pages * kPage); }

// Uses the other blocks one by one while these are held.
void step_beside(Model& model, const std::vector<size_t>& held) {
    model.begin_step();
    auto view = sh_sized<sh_view>();
    for (const size_t i : held) view = model.acquire(i);
    for (size_t i = held.size(); i < model.size(); i++) SUCCEEDS(model.use(i));
    for (const size_t i : held) model.release(i);
    model.end_step();
}

// A step in which two neighbours are held at a time.
void step_in_pairs(Model& model) {
    model.begin_step();
    auto view = sh_sized<sh_view>();
    for (size_t i = 0; i < model.size(); i++) {
        view = model.acquire(i);
        SUCCEEDS(model.compare(i, view, SH_STREAM_HOST));
        if (i) model.release(i - 1);
    }
    model.release(model.size() - 1);
    model.end_step();
}

std::vector<BlockSpec> with_unordered(size_t unordered, uint64_t pages) {
    std::vector<BlockSpec> specs = equal_blocks(unordered, pages * kPage, Origin::pageable, SH_BLOCK_UNORDERED);
    for (const BlockSpec& spec : equal_blocks(5, 4 * kPage, Origin::pageable)) specs.push_back(spec);
    return specs;
}

TEST(SmallestBudget, unordered_blocks_are_held_beside_the_order) {
    SoloModel model({.budget_bytes = 6 * kPage}, with_unordered(1, 3));
    EXPECT_REFUSED(sh_step_begin(model.runtime(), nullptr), SH_ERROR_BUDGET, smallest(7));
    EXPECT_NE(why().find("beside " + exact_size_text(3 * kPage)), std::string::npos) << why();
    SUCCEEDS(sh_device_set_budget(model.device(), 7 * kPage));
    for (int k = 0; k < 3; k++) step_beside(model, {0});
    EXPECT_EQ(model.plan().smallest_budget_bytes, 7 * kPage);
}

TEST(SmallestBudget, unordered_bytes_are_beside_the_order) {
    SoloModel model({.budget_bytes = 9 * kPage}, with_unordered(2, 3), {}, options_holding(1, 6 * kPage));
    EXPECT_REFUSED(sh_step_begin(model.runtime(), nullptr), SH_ERROR_BUDGET, smallest(10));
    SUCCEEDS(sh_device_set_budget(model.device(), 10 * kPage));
    for (int k = 0; k < 3; k++) step_beside(model, {0, 1});
    EXPECT_EQ(model.plan().smallest_budget_bytes, 10 * kPage);
}

// The budget decides how many small blocks are packed into one unit.
TEST(SmallestBudget, it_has_room_for_the_units_that_it_leads_to) {
    TestDevice device({.budget_bytes = 4 * kPage});
    const auto make = [&] {
        std::vector<BlockSpec> specs = equal_blocks(1, 60 * kPage, Origin::pageable, SH_BLOCK_UNORDERED);
        for (const BlockSpec& spec : equal_blocks(40, kPage / 2, Origin::pageable)) specs.push_back(spec);
        return std::make_unique<Model>(device, specs);
    };
    auto model = make();
    EXPECT_REFUSED(sh_step_begin(model->runtime(), nullptr), SH_ERROR_BUDGET, smallest(68));
    model.reset();
    SUCCEEDS(sh_device_set_budget(device.get(), 68 * kPage));
    model = make();
    for (int k = 0; k < 3; k++) step_beside(*model, {0});
}

// Fixed places for an odd number of equal blocks, of which two are held, need more than two blocks.
TEST(SmallestBudget, an_order_that_needs_more_waits_for_memory) {
    SoloModel model({.budget_bytes = 8 * kPage}, equal_blocks(5, 4 * kPage, Origin::pageable), {}, options_holding(2));
    for (int k = 0; k < 4; k++) step_in_pairs(model);
    EXPECT_EQ(model.stats().ring_bytes, 0u) << "without the order";
    EXPECT_EQ(model.stats().plans, 2u) << "not one for each step";
    const sh_plan_info dry = model.plan(16 * kPage);
    EXPECT_GT(dry.smallest_budget_bytes, 8 * kPage);
    EXPECT_LE(dry.smallest_budget_bytes, 12 * kPage);
    SUCCEEDS(sh_device_set_budget(model.device(), 12 * kPage));
    for (int k = 0; k < 3; k++) step_in_pairs(model);
    EXPECT_GT(model.stats().ring_bytes, 0u) << "with the order";
}

TEST(SmallestBudget, blocks_that_no_step_has_used_need_no_memory_beside_the_order) {
    SoloModel model({.budget_bytes = 4 * kPage}, equal_blocks(5, 4 * kPage, Origin::pageable));
    for (int k = 0; k < 3; k++) SUCCEEDS(model.step({0, 1, 2}));
    SUCCEEDS(model.step({0, 3, 1, 4, 2}));
    for (int k = 0; k < 3; k++) SUCCEEDS(model.step(forward(5)));
    EXPECT_GT(model.stats().ring_bytes, 0u);
}

TEST(SmallestBudget, a_refusal_names_what_all_runtimes_need) {
    TestDevice device({.budget_bytes = 12 * kPage});
    Model first(device, with_unordered(1, 3)), second(device, with_unordered(1, 3));
    for (int k = 0; k < 2; k++) step_beside(first, {0});
    EXPECT_REFUSED(sh_step_begin(second.runtime(), nullptr), SH_ERROR_BUDGET,
                   "all runtimes of the device need " + exact_size_text(14 * kPage));
    step_beside(first, {0});
    SUCCEEDS(sh_device_set_budget(device.get(), 14 * kPage));
    for (int k = 0; k < 3; k++) {
        step_beside(second, {0});
        step_beside(first, {0});
    }
}

// Unordered blocks are no part of the order. So a step that uses them follows the order that was learned.
TEST(SmallestBudget, unordered_blocks_do_not_change_the_order) {
    SoloModel model({.budget_bytes = 15 * kPage}, with_unordered(2, 3));
    for (int k = 0; k < 3; k++) step_beside(model, {0, 1});
    const uint64_t plans = model.stats().plans;
    for (int k = 0; k < 5; k++) step_beside(model, {0, 1});
    EXPECT_EQ(model.stats().plans, plans);
}

}  // namespace
}  // namespace stagehand::test
