// Captured steps whose copies go over the links of helpers, too.
#include "helped_graphs.h"

namespace stagehand::test {
namespace {

TEST_F(HelpedGraphs, launches_copy_over_all_links) {
    Captured captured;
    auto& [device, model, stream, step] = captured;
    SUCCEEDS(step.launch(stream));
    const sh_runtime_stats before = model.stats();
    SUCCEEDS(step.launch(stream));
    const sh_runtime_stats after = model.stats();
    const uint64_t all = after.bytes_to_device - before.bytes_to_device;
    EXPECT_GT(all, 10 * kMiB);
    EXPECT_NEAR(static_cast<double>(after.helped_bytes - before.helped_bytes), 0.5 * static_cast<double>(all),
                0.05 * static_cast<double>(all));
    for (int k = 0; k < 4; k++) SUCCEEDS(step.launch(stream));
    device.synchronize();
    EXPECT_EQ(step.compared(), 6 * kBlocks);
    EXPECT_EQ(step.wrong(), 0u);
}

TEST_F(HelpedGraphs, launches_use_the_own_link_unless_they_may_use_others) {
    Captured captured(helped(0));
    auto& [device, model, stream, step] = captured;
    SUCCEEDS(step.launch(stream));
    const uint64_t before = model.stats().helped_bytes;  // of loads of resident parts
    for (int k = 0; k < 2; k++) SUCCEEDS(step.launch(stream));
    device.synchronize();
    EXPECT_EQ(model.stats().helped_bytes, before);
    EXPECT_EQ(step.compared(), 3 * kBlocks);
    EXPECT_EQ(step.wrong(), 0u);
}

TEST_F(HelpedGraphs, graphs_in_which_helpers_have_no_part_leave_them_alone) {
    transfer::Bond::set_least_bytes(64 * kMiB);  // no copy of the capture is divided
    TestDevice device(helped());
    Model model(device, blocks());
    const sh_block protect = model.id(0);
    SUCCEEDS(sh_protect_blocks(model.runtime(), &protect, 1));
    ASSERT_NO_FATAL_FAILURE(plan(model));
    ASSERT_EQ(model.state(0).streamed_bytes, 0u);
    const sh_stream stream = device.stream();
    Step step(device, model);
    ASSERT_NO_FATAL_FAILURE(step.capture(stream, {7, 8, 9}));
    transfer::Bond::set_least_bytes(256 << 10);
    for (int k = 0; k < 2; k++) {
        SUCCEEDS(step.enter(stream));
        const uint64_t entered = model.stats().helped_bytes;
        SUCCEEDS(sh_invalidate_blocks(model.runtime(), &protect, 1));
        SUCCEEDS(model.use(0, SH_STREAM_HOST));
        const uint64_t loaded = model.stats().helped_bytes;
        EXPECT_GT(loaded, entered) << "the helper brings other loads during the launch";
        SUCCEEDS(step.launch_entered(stream));
        EXPECT_EQ(model.stats().helped_bytes, loaded);
    }
    device.synchronize();
    EXPECT_EQ(step.compared(), 6u);
    EXPECT_EQ(step.wrong(), 0u);
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

// The same memory of the helper serves both.
TEST_F(HelpedGraphs, launches_and_steps_take_turns) {
    TestDevice device(helped());
    Model model(device, blocks());
    ASSERT_NO_FATAL_FAILURE(plan(model));
    const sh_stream stream = device.stream(), other = device.stream();
    Step first(device, model), second(device, model);
    for (Step* step : {&first, &second}) {
        SUCCEEDS(step->begin(stream));
        for (const size_t i : forward(kBlocks)) SUCCEEDS(step->use(i, stream, i % 3 ? 0 : 2'000'000));
        SUCCEEDS(step->end());
    }
    std::vector<sh_block> ids;
    for (size_t i = 0; i < kBlocks; i++) ids.push_back(model.id(i));
    for (int k = 0; k < 6; k++) {
        SUCCEEDS(first.launch(k % 2 ? stream : other));
        if (k % 3) {
            SUCCEEDS(model.step(forward(kBlocks), other));
        }
        SUCCEEDS(second.launch(k % 2 ? other : stream));
        SUCCEEDS(sh_invalidate_blocks(model.runtime(), ids.data(), ids.size()));  // resident parts come again
        SUCCEEDS(model.step(forward(kBlocks), stream));
    }
    device.synchronize();
    EXPECT_EQ(first.compared() + second.compared(), 12 * kBlocks);
    EXPECT_EQ(first.wrong() + second.wrong(), 0u);
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

TEST_F(HelpedGraphs, loads_during_a_launch_use_the_own_link) {
    TestDevice device(helped());
    Model model(device, blocks());
    const sh_block protect[] = {model.id(0), model.id(1)};
    SUCCEEDS(sh_protect_blocks(model.runtime(), protect, 2));
    ASSERT_NO_FATAL_FAILURE(plan(model));
    const sh_stream stream = device.stream();
    std::vector<size_t> streamed, resident;
    for (size_t i = 0; i < kBlocks; i++) (model.state(i).streamed_bytes ? streamed : resident).push_back(i);
    ASSERT_GE(resident.size(), 2u);
    Step step(device, model);
    ASSERT_NO_FATAL_FAILURE(step.capture(stream, streamed));
    const auto load = [&](size_t i) {  // and returns what helpers have brought
        const uint64_t before = model.stats().helped_bytes;
        const sh_block id = model.id(i);
        EXPECT_SUCCEEDS(sh_invalidate_blocks(model.runtime(), &id, 1));
        EXPECT_SUCCEEDS(model.use(i, SH_STREAM_HOST));
        return model.stats().helped_bytes - before;
    };
    EXPECT_GT(load(resident[0]), 0u);
    for (int k = 0; k < 3; k++) {
        SUCCEEDS(step.enter(stream));
        for (const size_t i : resident) EXPECT_EQ(load(i), 0u);
        SUCCEEDS(step.launch_entered(stream));
        EXPECT_GT(load(resident[1]), 0u);
    }
    device.synchronize();
    EXPECT_EQ(step.wrong(), 0u);
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

TEST_F(HelpedGraphs, several_streams_of_a_capture_use_what_the_helper_brings) {
    TestDevice device(helped());
    Model model(device, blocks());
    ASSERT_NO_FATAL_FAILURE(plan(model));
    const sh_stream stream = device.stream(), side = device.stream();
    Step step(device, model);
    SUCCEEDS(step.begin(stream));
    SUCCEEDS(DRIVER(sh_test_follow)(side, stream));
    for (const size_t i : forward(kBlocks)) SUCCEEDS(step.use(i, i % 2 ? side : stream, 200'000));
    SUCCEEDS(DRIVER(sh_test_follow)(stream, side));
    SUCCEEDS(step.end());
    for (int k = 0; k < 4; k++) SUCCEEDS(step.launch(stream));
    device.synchronize();
    EXPECT_EQ(step.compared(), 4 * kBlocks);
    EXPECT_EQ(step.wrong(), 0u);
}

struct Seen {
    const Model* model = nullptr;
    size_t block = 0;
    std::atomic<int> loads{0}, wrong{0};
};
struct Look {
    Seen* seen;
    const uint8_t* at;
    uint64_t offset, bytes;

    static void compare(void* data) {
        const Look& look = *static_cast<Look*>(data);
        const auto truth = look.seen->model->truth(look.seen->block);
        look.seen->loads++;
        if (std::memcmp(look.at, truth->data() + look.offset, look.bytes) != 0) look.seen->wrong++;
    }
};
std::deque<Look>& looks() {
    static std::deque<Look> all;
    return all;
}
TestDevice* looking = nullptr;

int32_t look_at_load(const sh_loaded_range* range, void* user_data) {
    auto* const seen = static_cast<Seen*>(user_data);
    looks().push_back({seen, static_cast<const uint8_t*>(range->address), range->offset, range->bytes});
    return sh_stream_launch(looking->get(), range->stream, Look::compare, &looks().back(), 0);
}

TEST_F(HelpedGraphs, on_load_comes_after_what_the_helper_brings) {
    TestDevice device(helped());
    looking = &device;
    Seen seen[kBlocks];
    std::vector<BlockSpec> specs = blocks();
    for (size_t i = 0; i < kBlocks; i++) {
        specs[i].on_load = look_at_load;
        specs[i].user_data = &seen[i];
    }
    Model model(device, specs);
    for (size_t i = 0; i < kBlocks; i++) {
        seen[i].model = &model;
        seen[i].block = i;
    }
    ASSERT_NO_FATAL_FAILURE(plan(model));
    const sh_stream stream = device.stream();
    Step step(device, model);
    ASSERT_NO_FATAL_FAILURE(step.capture(stream, forward(kBlocks)));
    for (int k = 0; k < 3; k++) SUCCEEDS(step.launch(stream));
    device.synchronize();
    int loads = 0, wrong = 0;
    for (const Seen& each : seen) {
        loads += each.loads;
        wrong += each.wrong;
    }
    EXPECT_GE(loads, 9);
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(step.wrong(), 0u);
    model.destroy();
    looks().clear();
}

TEST_F(HelpedGraphs, are_launched_after_a_resume) {
    if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    Captured captured;
    auto& [device, model, stream, step] = captured;
    for (int k = 0; k < 3; k++) {
        SUCCEEDS(step.launch(stream));
        SUCCEEDS(sh_pause(device.get(), nullptr, nullptr));
        EXPECT_EQ(neighbour_->memory().used_bytes, 0u);
        SUCCEEDS(sh_resume(device.get(), nullptr, nullptr));
    }
    SUCCEEDS(step.launch(stream));
    device.synchronize();
    EXPECT_EQ(step.compared(), 4 * kBlocks);
    EXPECT_EQ(step.wrong(), 0u);
}

TEST_F(HelpedGraphs, are_stale_without_the_helpers_memory) {
    if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    Captured captured;
    auto& [device, model, stream, step] = captured;
    SUCCEEDS(step.launch(stream));
    SUCCEEDS(sh_pause(device.get(), nullptr, nullptr));
    const uint64_t all = neighbour_->memory().budget_bytes;
    SUCCEEDS(sh_device_set_budget(neighbour_->get(), 32 * kMiB));  // which has no room for a buffer
    SUCCEEDS(sh_resume(device.get(), nullptr, nullptr));
    EXPECT_EQ(step.launch(stream), SH_ERROR_STALE);
    EXPECT_NE(why().find("capture:1"), std::string::npos) << why();
    EXPECT_NE(why().find("capture the graph again"), std::string::npos) << why();
    Step alone(device, model);
    ASSERT_NO_FATAL_FAILURE(alone.capture(stream, forward(kBlocks)));
    SUCCEEDS(alone.launch(stream));
    EXPECT_EQ(step.launch(stream), SH_ERROR_STALE);
    SUCCEEDS(sh_device_set_budget(neighbour_->get(), all));
    SUCCEEDS(model.step(forward(kBlocks), stream));
    device.synchronize();
    EXPECT_EQ(alone.compared(), kBlocks);
    EXPECT_EQ(step.wrong() + alone.wrong(), 0u);
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

TEST_F(HelpedGraphs, are_stale_if_the_helper_has_less_memory_for_them) {
    if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    Planned planned;
    auto& [device, model, stream] = planned;
    Step step(device, model), again(device, model);
    ASSERT_NO_FATAL_FAILURE(step.capture(stream, forward(kBlocks)));
    SUCCEEDS(sh_pause(device.get(), nullptr, nullptr));
    SUCCEEDS(sh_device_set_budget(neighbour_->get(), 128 * kMiB));
    SUCCEEDS(sh_resume(device.get(), nullptr, nullptr));
    EXPECT_EQ(step.launch(stream), SH_ERROR_STALE);
    ASSERT_NO_FATAL_FAILURE(again.capture(stream, forward(kBlocks)));
    SUCCEEDS(again.launch(stream));
    const uint64_t before = model.stats().helped_bytes;
    SUCCEEDS(again.launch(stream));
    EXPECT_GT(model.stats().helped_bytes, before);
    device.synchronize();
    EXPECT_EQ(again.wrong(), 0u);
}

TEST_F(HelpedGraphs, discarded_captures_leave_the_helper_usable) {
    Planned planned;
    auto& [device, model, stream] = planned;
    for (int k = 0; k < 3; k++) {
        ASSERT_EQ(DRIVER(sh_test_capture_begin)(stream), SH_OK);
        SUCCEEDS(sh_capture_begin(model.runtime(), stream));
        sh_view view = SH_VIEW_INIT;
        SUCCEEDS(sh_acquire(model.runtime(), model.id(kBlocks - 1), stream, 0, &view));
        SUCCEEDS(sh_capture_end(model.runtime(), stream, nullptr));
        sh_test_graph* native = nullptr;
        EXPECT_EQ(DRIVER(sh_test_capture_end)(stream, &native), SH_OK) << DRIVER(sh_test_capture_error)();
        if (native) DRIVER(sh_test_graph_destroy)(native);
    }
    Step step(device, model);
    ASSERT_NO_FATAL_FAILURE(step.capture(stream, forward(kBlocks)));
    SUCCEEDS(step.launch(stream));
    SUCCEEDS(model.step(forward(kBlocks), stream));
    device.synchronize();
    EXPECT_EQ(step.wrong(), 0u);
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

TEST_F(HelpedGraphs, a_later_opening_may_not_add_the_flag) {
    TestDevice device(helped(0));
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.device_flags = SH_HELPED_IN_GRAPHS;
    sh_device* again = nullptr;
    EXPECT_EQ(sh_device_open("capture:0", &options, &again), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(why().find("SH_HELPED_IN_GRAPHS"), std::string::npos) << why();
}

}  // namespace
}  // namespace stagehand::test
