// Devices that do not map memory by pages. A block's address is the address of its memory, and changes only with the
// plan. The other tests of the core also run on such devices; see STAGEHAND_TEST_NO_PAGES.
#include <algorithm>
#include <map>

#include "engine.h"
#include "host/host_backend.h"

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

void expect_all_right(TestDevice& device, Model& model) {
    device.synchronize();
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    EXPECT_GT(model.compared(), 0u);
    EXPECT_LE(device.memory().peak_bytes, device.memory().budget_bytes);
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
    TestDevice device(without_pages(pages));
    Model model(device, mixed_blocks(20));
    const std::vector<size_t> order = back ? forward_backward(20) : forward(20);
    SUCCEEDS(model.schedule(order));
    const sh_stream stream = device.stream();
    for (int k = 0; k < 6; k++) SUCCEEDS(model.step(order, k % 3 ? stream : SH_STREAM_HOST));
    expect_all_right(device, model);
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
    sh_device_caps caps = SH_DEVICE_CAPS_INIT;
    SUCCEEDS(sh_device_get_caps(device.get(), &caps));
    EXPECT_EQ(caps.flags & SH_DEVICE_FIXED_ADDRESSES, 0u);
    Model model(device, equal_blocks(6, 4 * kPage));
    SUCCEEDS(model.schedule(forward(6)));
    for (size_t i = 0; i < 6; i++) EXPECT_EQ(model.state(i).address, nullptr) << "an address without memory";
    SUCCEEDS(sh_step_begin(model.runtime(), nullptr));
    sh_view view = SH_VIEW_INIT;
    SUCCEEDS(sh_acquire(model.runtime(), model.id(2), SH_STREAM_HOST, 0, &view));
    EXPECT_EQ(view.flags & SH_VIEW_FIXED_ADDRESS, 0u);
    EXPECT_EQ(view.address, model.state(2).address);
    SUCCEEDS(sh_release(model.runtime(), model.id(2), SH_STREAM_HOST));
    SUCCEEDS(sh_step_end(model.runtime()));
}

TEST_F(WithoutPages, addresses_stay_as_long_as_the_plan_does) {
    TestDevice device(without_pages(20));
    Model model(device, unequal_blocks(20, Origin::pinned));
    SUCCEEDS(model.schedule(forward(20)));
    model.plan();
    const std::vector<void*> planned = addresses(model);
    for (size_t i = 0; i < 20; i++) EXPECT_EQ(reinterpret_cast<uintptr_t>(planned[i]) % 256, 0u);
    const sh_stream stream = device.stream();
    for (int k = 0; k < 4; k++) {
        SUCCEEDS(model.step(forward(20), stream));
        EXPECT_EQ(addresses(model), planned);
    }
    expect_all_right(device, model);
    EXPECT_EQ(model.stats().plans, 1u);
}

// Resident blocks lie apart from all other memory. Streamed blocks lie in one ring that is no larger than the plan
// says.
TEST_F(WithoutPages, memory_is_where_the_plan_says) {
    TestDevice device(without_pages(30));
    Model model(device, equal_blocks(12, 5 * kPage));
    SUCCEEDS(model.schedule(forward(12)));
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
    EXPECT_EQ(device.memory().used_bytes, plan.resident_bytes + plan.ring_bytes);
}

TEST_F(WithoutPages, less_than_the_largest_block_is_refused) {
    TestDevice device(without_pages(9));
    std::vector<BlockSpec> specs = equal_blocks(4, 3 * kPage);
    specs[2] = {10 * kPage - 5, Origin::pinned, 0, nullptr, nullptr, "the large one"};
    Model model(device, specs);
    SUCCEEDS(model.schedule(forward(4)));
    EXPECT_EQ(sh_step_begin(model.runtime(), nullptr), SH_ERROR_BUDGET);
    EXPECT_NE(why().find("the large one"), std::string::npos) << why();
    EXPECT_NE(why().find(std::to_string(10 * kPage)), std::string::npos) << why();
    SUCCEEDS(sh_device_set_budget(device.get(), 10 * kPage));
    for (int k = 0; k < 3; k++) SUCCEEDS(model.step(forward(4)));
    expect_all_right(device, model);
}

// The ring moves while streams are late. The memory that they use must not be given back before they have finished.
TEST_F(WithoutPages, budgets_move_while_streams_are_late) {
    TestDevice device(without_pages(40, ";jitter_us=100;jitter_seed=3"));
    Model model(device, mixed_blocks(14));
    SUCCEEDS(model.schedule(forward(14)));
    const sh_stream streams[] = {device.stream(), device.stream()};
    std::vector<std::vector<void*>> places;
    for (const uint64_t pages : {30, 12, 20, 9, 100, 10, 60, 8, 11}) {
        SUCCEEDS(sh_device_set_budget(device.get(), pages * kPage));
        EXPECT_LE(device.memory().used_bytes, pages * kPage) << "a runtime between steps gives back at once";
        for (int k = 0; k < 2; k++) SUCCEEDS(model.step(forward(14), streams[k], 400'000));
        EXPECT_LE(device.memory().used_bytes, pages * kPage);
        places.push_back(addresses(model));
    }
    device.synchronize();
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    EXPECT_NE(std::count(places.begin(), places.end(), places[0]), ptrdiff_t(places.size()))
        << "no address has changed: this tests nothing";
    for (const host::MemoryStatistics& host : host::all_memory_statistics()) EXPECT_LE(host.peak_bytes, 100 * kPage);
}

TEST_F(WithoutPages, what_stays_resident_keeps_its_place_and_contents) {
    TestDevice device(without_pages(20));
    Model model(device, equal_blocks(10, 4 * kPage));
    SUCCEEDS(model.schedule(forward(10)));
    for (int k = 0; k < 2; k++) SUCCEEDS(model.step(forward(10)));
    std::map<size_t, sh_block_state> before;
    for (size_t i = 0; i < 10; i++)
        if (model.state(i).resident_bytes) before[i] = model.state(i);
    ASSERT_FALSE(before.empty());
    SUCCEEDS(sh_device_set_budget(device.get(), 40 * kPage));
    model.plan();
    for (int k = 0; k < 2; k++) SUCCEEDS(model.step(forward(10)));
    EXPECT_EQ(model.plan().streamed_blocks, 0u);
    for (const auto& [i, was] : before) {
        EXPECT_EQ(model.state(i).address, was.address);
        EXPECT_EQ(model.state(i).serial, was.serial) << "loaded again";
    }
    expect_all_right(device, model);
}

TEST_F(WithoutPages, views_that_are_held_keep_their_place) {
    TestDevice device(without_pages(24));
    sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
    options.max_held = 3;
    Model model(device, equal_blocks(9, 5 * kPage, Origin::pageable), options);
    SUCCEEDS(model.schedule(forward(9)));
    for (int k = 0; k < 4; k++) {
        SUCCEEDS(sh_step_begin(model.runtime(), nullptr));
        std::map<size_t, sh_view> held;
        for (size_t i = 0; i < 9 + 2; i++) {
            if (i >= 3) {
                SUCCEEDS(model.compare(i - 3, held[i - 3], SH_STREAM_HOST));
                SUCCEEDS(sh_release(model.runtime(), model.id(i - 3), SH_STREAM_HOST));
                held.erase(i - 3);
            }
            if (i >= 9) continue;
            held[i] = SH_VIEW_INIT;
            SUCCEEDS(sh_acquire(model.runtime(), model.id(i), SH_STREAM_HOST, 0, &held[i]));
            // No plan is put into force while a view is held.
            if (i == 4) {
                SUCCEEDS(sh_device_set_budget(device.get(), (k % 2 ? 24 : 18) * kPage));
            }
            for (const auto& [other, view] : held) EXPECT_EQ(model.state(other).address, view.address);
        }
        SUCCEEDS(sh_release(model.runtime(), model.id(8), SH_STREAM_HOST));
        SUCCEEDS(sh_step_end(model.runtime()));
    }
    device.synchronize();
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

TEST_F(WithoutPages, unregistered_blocks_give_back_and_new_ones_find_room) {
    TestDevice device(without_pages(24));
    Model model(device, mixed_blocks(12));
    SUCCEEDS(model.schedule(forward(12)));
    const sh_stream stream = device.stream();
    SUCCEEDS(model.step(forward(12), stream));
    size_t gone = 0;
    while (gone < 12 && !(model.state(gone).resident_bytes > kPage)) gone++;
    ASSERT_LT(gone, 12u) << "nothing is resident";
    const uint64_t used = device.memory().used_bytes;
    SUCCEEDS(model.remove(gone));
    EXPECT_LT(device.memory().used_bytes, used);
    std::vector<size_t> order;
    for (size_t i = 0; i < 12; i++)
        if (i != gone) order.push_back(i);
    SUCCEEDS(model.step(order, stream));
    SUCCEEDS(model.add({5 * kPage + 1, Origin::file}));
    order.push_back(12);
    SUCCEEDS(model.schedule(order));
    EXPECT_EQ(model.state(12).address, nullptr);
    for (int k = 0; k < 3; k++) SUCCEEDS(model.step(order, stream));
    EXPECT_NE(model.state(12).address, nullptr);
    expect_all_right(device, model);
    model.destroy();
    EXPECT_EQ(device.memory().used_bytes, 0u);
}

TEST_F(WithoutPages, unordered_blocks_come_and_go) {
    TestDevice device(without_pages(22));
    std::vector<BlockSpec> specs = equal_blocks(5, 3 * kPage);
    for (size_t i = 0; i < 30; i++) specs.push_back({kPage + i * 150, kOrigins[i % 5], SH_BLOCK_UNORDERED});
    sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
    options.unordered_bytes = 8 * kPage;
    Model model(device, specs, options);
    SUCCEEDS(model.schedule(forward(5)));
    const sh_stream stream = device.stream();
    for (size_t k = 0; k < 25; k++) {
        SUCCEEDS(sh_step_begin(model.runtime(), nullptr));
        for (size_t n = 0; n < 5; n++) {
            const size_t i = 5 + (k * 17 + n * 11) % 30;
            sh_view view = SH_VIEW_INIT;
            const bool nowhere = model.state(i).address == nullptr;
            SUCCEEDS(sh_acquire(model.runtime(), model.id(i), stream, 0, &view));
            EXPECT_EQ((view.flags & SH_VIEW_REMAPPED) != 0, nowhere);
            SUCCEEDS(model.compare(i, view, stream, 50'000));
            SUCCEEDS(sh_release(model.runtime(), model.id(i), stream));
            SUCCEEDS(model.use(n, stream));
        }
        SUCCEEDS(sh_step_end(model.runtime()));
    }
    EXPECT_GT(model.stats().evictions, 0u);
    expect_all_right(device, model);
}

// An unordered block joins the order. It stays in its place if it becomes resident, and moves into the ring if it
// streams.
TEST_F(WithoutPages, blocks_without_an_order_are_taken_into_it) {
    TestDevice device(without_pages(60));
    Model model(device, mixed_blocks(16));
    const sh_stream stream = device.stream();
    for (int k = 0; k < 2; k++) SUCCEEDS(model.step(forward(16), stream));  // the order is learned
    SUCCEEDS(sh_device_set_budget(device.get(), 14 * kPage));
    for (int k = 0; k < 3; k++) SUCCEEDS(model.step(forward(16), stream));
    EXPECT_GT(model.plan().streamed_blocks, 0u);
    device.synchronize();
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    EXPECT_LE(device.memory().used_bytes, 14 * kPage);
}

TEST_F(WithoutPages, what_the_engine_changed_survives_a_new_plan) {
    for (const Origin origin : {Origin::pinned, Origin::pageable}) {
        TestDevice device(without_pages(16));
        Model model(device, equal_blocks(8, 4 * kPage - 7, origin, SH_BLOCK_MUTABLE));
        SUCCEEDS(model.schedule(forward(8)));
        const sh_stream stream = device.stream();
        uint64_t version = 1;
        for (const uint64_t pages : {16, 9, 30, 8, 64, 12}) {
            SUCCEEDS(sh_device_set_budget(device.get(), pages * kPage));
            SUCCEEDS(sh_step_begin(model.runtime(), nullptr));
            for (size_t i = 0; i < 8; i++) {
                const sh_stream on = version % 3 ? stream : SH_STREAM_HOST;
                sh_view view = SH_VIEW_INIT;
                SUCCEEDS(sh_acquire(model.runtime(), model.id(i), on, 0, &view));
                SUCCEEDS(model.compare(i, view, on));
                SUCCEEDS(model.overwrite(i, view, version++, on));
                SUCCEEDS(sh_release(model.runtime(), model.id(i), on));
            }
            SUCCEEDS(sh_step_end(model.runtime()));
            device.synchronize();
        }
        SUCCEEDS(model.step(forward(8), stream));
        SUCCEEDS(sh_write_back(model.runtime(), nullptr, 0));
        device.synchronize();
        EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
        for (size_t i = 0; i < 8; i++) EXPECT_EQ(model.source(i).read(), *model.truth(i)) << "block " << i;
    }
}

TEST_F(WithoutPages, two_runtimes_share_the_budget) {
    TestDevice device(without_pages(40));
    Model first(device, equal_blocks(10, 4 * kPage));
    SUCCEEDS(first.schedule(forward(10)));
    SUCCEEDS(first.step(forward(10)));
    EXPECT_EQ(device.memory().used_bytes, 40 * kPage);
    Model second(device, mixed_blocks(14));
    SUCCEEDS(second.schedule(forward_backward(14)));
    const sh_stream stream = device.stream();
    for (int k = 0; k < 3; k++) {
        SUCCEEDS(second.step(forward_backward(14), stream));
        SUCCEEDS(first.step(forward(10), stream));
    }
    EXPECT_GT(first.plan().streamed_blocks, 0u);
    second.destroy();
    for (int k = 0; k < 2; k++) SUCCEEDS(first.step(forward(10)));
    EXPECT_EQ(first.plan().streamed_blocks, 0u) << "what the second had did not come back";
    expect_all_right(device, first);
    EXPECT_EQ(second.wrong_uses(), 0u) << second.first_wrong();
}

TEST_F(WithoutPages, the_link_is_measured_and_gives_back) {
    DeviceSettings settings = without_pages(32, ";bandwidth=1GB/s");
    settings.link_bytes_per_second = 0;
    TestDevice device(settings);
    Model model(device, equal_blocks(12, 4 * kPage));
    SUCCEEDS(model.schedule(forward(12)));
    const sh_plan_info plan = model.plan();
    EXPECT_GT(plan.link_bytes_per_second, 0u);
    EXPECT_EQ(device.memory().used_bytes, plan.resident_bytes + plan.ring_bytes);
    for (int k = 0; k < 2; k++) SUCCEEDS(model.step(forward(12)));
    expect_all_right(device, model);
}

}  // namespace
}  // namespace stagehand::test
