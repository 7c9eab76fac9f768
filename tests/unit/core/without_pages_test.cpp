// Devices that do not map memory by pages. A block's address is the address of its memory, and changes only with the
// plan. The other tests of the core also run on such devices; see STAGEHAND_TEST_NO_PAGES.
#include <algorithm>
#include <map>

#include "engine.h"

namespace stagehand::test {
namespace {

DeviceSettings without_pages(uint64_t pages, const std::string& more = "") {
    DeviceSettings settings{.budget_bytes = pages * kPage};
    settings.options += more;
    settings.map_pages = false;
    return settings;
}

std::vector<BlockSpec> mixed_blocks(size_t count) {
    std::vector<BlockSpec> specs = unequal_blocks(count, Origin::pinned);
    for (size_t i = 0; i < count; i++) specs[i].origin = kOrigins[i % 5];
    return specs;
}

std::vector<void*> addresses(const Model& model) {
    std::vector<void*> result;
    for (size_t i = 0; i < model.size(); i++) result.push_back(model.state(i).address);
    return result;
}

void expect_all_right(Model& model) {
    model.synchronize();
    EXPECT_GT(model.compared(), 0u);
    EXPECT_LE(model.memory().peak_bytes, model.memory().budget_bytes);
}

void skip_where_pages_are_larger() {
    if (smallest_page_of_device_under_test(true) > kPage)
        GTEST_SKIP() << "without mapping, this device's memory comes in larger pages";
}

class WithoutPages : public testing::Test {
protected:
    void SetUp() override { skip_where_pages_are_larger(); }
};

class OrdersWithoutPages : public testing::TestWithParam<std::tuple<uint64_t, bool>> {
protected:
    void SetUp() override { skip_where_pages_are_larger(); }
};

TEST_P(OrdersWithoutPages, stream_byte_for_byte) {
    const auto [pages, back] = GetParam();
    SoloModel model(without_pages(pages), mixed_blocks(20));
    const std::vector<size_t> order = back ? forward_backward(20) : forward(20);
    SUCCEEDS(model.schedule(order));
    const sh_stream stream = model.stream();
    for (int k = 0; k < 6; k++) SUCCEEDS(model.step(order, k % 3 ? stream : SH_STREAM_HOST));
    expect_all_right(model);
    EXPECT_EQ(model.compared(), 6 * order.size());
    const sh_plan_info plan = model.plan();
    EXPECT_LE(plan.resident_bytes + plan.ring_bytes, pages * kPage);
    for (size_t i = 0; i < 20; i++) {
        const sh_block_state state = model.state(i);
        EXPECT_TRUE(state.resident_bytes == 0 || state.streamed_bytes == 0) << "block " << i << " is divided";
        EXPECT_EQ(state.resident_bytes + state.streamed_bytes, state.bytes);
    }
    EXPECT_EQ(plan.streamed_blocks == 0, plan.ring_bytes == 0);
}

INSTANTIATE_TEST_SUITE_P(Budgets, OrdersWithoutPages,
                         testing::Combine(testing::Values(uint64_t(8), uint64_t(9), uint64_t(12), uint64_t(17),
                                                          uint64_t(24), uint64_t(40), uint64_t(200)),
                                          testing::Bool()));

TEST_F(WithoutPages, says_what_it_is) {
    TestDevice device(without_pages(16));
    auto caps = sh_sized<sh_device_caps>();
    SUCCEEDS(sh_device_get_caps(device.get(), &caps));
    EXPECT_EQ(caps.flags & SH_DEVICE_FIXED_ADDRESSES, 0u);
    Model model(device, equal_blocks(6, 4 * kPage));
    SUCCEEDS(model.schedule(forward(6)));
    for (size_t i = 0; i < 6; i++) EXPECT_EQ(model.state(i).address, nullptr) << "an address without memory";
    model.begin_step();
    sh_view view = model.acquire(2);
    EXPECT_EQ(view.flags & SH_VIEW_FIXED_ADDRESS, 0u);
    EXPECT_EQ(view.address, model.state(2).address);
    model.release(2);
    model.end_step();
}

TEST_F(WithoutPages, addresses_stay_as_long_as_the_plan_does) {
    SoloModel model(without_pages(20), unequal_blocks(20, Origin::pinned), forward(20));
    model.plan();
    const std::vector<void*> planned = addresses(model);
    for (size_t i = 0; i < 20; i++) EXPECT_EQ(reinterpret_cast<uintptr_t>(planned[i]) % 256, 0u);
    const sh_stream stream = model.stream();
    for (int k = 0; k < 4; k++) {
        SUCCEEDS(model.step(forward(20), stream));
        EXPECT_EQ(addresses(model), planned);
    }
    expect_all_right(model);
    EXPECT_EQ(model.stats().plans, 1u);
}

// Resident blocks lie apart from all other memory. Streamed blocks lie in one ring that is no larger than the plan
// says.
TEST_F(WithoutPages, memory_is_where_the_plan_says) {
    SoloModel model(without_pages(30), equal_blocks(12, 5 * kPage), forward(12));
    const sh_plan_info plan = model.plan();
    ASSERT_GT(plan.resident_blocks, 0u);
    ASSERT_GT(plan.streamed_blocks, 0u);
    uintptr_t ring_begin = UINTPTR_MAX, ring_end = 0;
    std::map<uintptr_t, uintptr_t> residents;
    for (size_t i = 0; i < 12; i++) {
        const sh_block_state state = model.state(i);
        const auto begin = reinterpret_cast<uintptr_t>(state.address);
        if (state.streamed_bytes) {
            ring_begin = std::min(ring_begin, begin);
            ring_end = std::max(ring_end, begin + state.bytes);
        } else {
            EXPECT_TRUE(residents.emplace(begin, begin + state.bytes).second);
        }
    }
    EXPECT_LE(ring_end - ring_begin, plan.ring_bytes);
    residents.emplace(ring_begin, ring_end);
    uintptr_t last = 0;
    for (const auto& [begin, end] : residents) {
        EXPECT_GE(begin, last);
        last = end;
    }
    EXPECT_EQ(model.memory().used_bytes, plan.resident_bytes + plan.ring_bytes);
}

TEST_F(WithoutPages, what_stays_resident_keeps_its_place_and_contents) {
    SoloModel model(without_pages(20), equal_blocks(10, 4 * kPage), forward(10));
    for (int k = 0; k < 2; k++) SUCCEEDS(model.step(forward(10)));
    std::map<size_t, sh_block_state> before;
    for (size_t i = 0; i < 10; i++)
        if (model.state(i).resident_bytes) before[i] = model.state(i);
    ASSERT_FALSE(before.empty());
    SUCCEEDS(sh_device_set_budget(model.device(), 40 * kPage));
    model.plan();
    for (int k = 0; k < 2; k++) SUCCEEDS(model.step(forward(10)));
    EXPECT_EQ(model.plan().streamed_blocks, 0u);
    for (const auto& [i, was] : before) {
        EXPECT_EQ(model.state(i).address, was.address);
        EXPECT_EQ(model.state(i).serial, was.serial) << "loaded again";
    }
    expect_all_right(model);
}

TEST_F(WithoutPages, unordered_blocks_come_and_go) {
    std::vector<BlockSpec> specs = equal_blocks(5, 3 * kPage);
    for (size_t i = 0; i < 30; i++) specs.push_back({kPage + i * 150, kOrigins[i % 5], SH_BLOCK_UNORDERED});
    SoloModel model(without_pages(22), specs, forward(5), {.unordered_bytes = 8 * kPage});
    const sh_stream stream = model.stream();
    for (size_t k = 0; k < 25; k++) {
        model.begin_step();
        for (size_t n = 0; n < 5; n++) {
            const size_t i = 5 + (k * 17 + n * 11) % 30;
            auto view = sh_sized<sh_view>();
            const bool nowhere = model.state(i).address == nullptr;
            view = model.acquire(i, stream);
            EXPECT_EQ((view.flags & SH_VIEW_REMAPPED) != 0, nowhere);
            SUCCEEDS(model.compare(i, view, stream, 50'000));
            model.release(i, stream);
            SUCCEEDS(model.use(n, stream));
        }
        model.end_step();
    }
    EXPECT_GT(model.stats().evictions, 0u);
    expect_all_right(model);
}

}  // namespace
}  // namespace stagehand::test
