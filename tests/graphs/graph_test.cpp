// Captured steps: the bytes that a launch loads, refused calls, and the lifetime of a graph. The capture backend has
// graphs with the rules of a driver on the host backend's real memory.
#include "captured_step.h"

namespace stagehand::test {
namespace {

TEST_F(Graphs, a_launch_streams_a_model_larger_than_the_budget) {
    for (const uint64_t pages : {12u, 20u, 40u, 64u, 200u}) {
        SCOPED_TRACE(pages);
        SoloModel model(settings(pages), unequal_blocks(20, Origin::pinned), forward(20));
        const sh_plan_info plan = model.plan();
        const sh_stream stream = model.stream();
        Step step(model, stream, forward(20));
        for (int k = 0; k < 4; k++) SUCCEEDS(step.launch(stream));
        model.synchronize();
        EXPECT_EQ(step.compared(), 80u);
        EXPECT_LE(model.memory().peak_bytes, pages * kPage);
        if (plan.ring_bytes == 0) {
            EXPECT_EQ(step.copies(), 0u);
        }
    }
}

TEST_F(Graphs, launches_leave_no_events) {
    SoloModel model(settings(30), equal_blocks(10, 6 * kPage, Origin::pinned), forward(10));
    Step step(model, forward(10));
    for (int k = 0; k < 3; k++) SUCCEEDS(step.launch());
    const uint64_t events = DRIVER(sh_test_events)();
    for (int k = 0; k < 20; k++) SUCCEEDS(step.launch());
    EXPECT_LE(DRIVER(sh_test_events)(), events + 3);
}

TEST_F(Graphs, launches_meet_new_contents_invalidations_eager_steps_and_other_streams) {
    SoloModel model(settings(30, ";jitter_us=100;jitter_seed=5"), unequal_blocks(10, Origin::pinned), forward(10));
    Step step(model, forward(10));
    const sh_stream stream = step.stream(), other = model.stream();
    uint64_t version = 1;
    for (int k = 0; k < 12; k++) {
        SCOPED_TRACE(k);
        SUCCEEDS(step.launch(k % 3 ? stream : other));
        if (k % 2) {
            SUCCEEDS(model.step(forward(10), k % 4 == 1 ? other : SH_STREAM_HOST));
        }
        if (k % 3 == 1) {
            SUCCEEDS(model.use(static_cast<size_t>(k) % 10, other));
        }
        for (const size_t i : {size_t(0), size_t(k) % 10}) {
            const sh_block id = model.id(i);
            model.synchronize();  // the launched work compares with the old contents
            SUCCEEDS(sh_source_update_begin(model.runtime(), &id, 1));
            EXPECT_EQ(sh_graph_enter(step.graph(), stream), SH_ERROR_INVALID_STATE);
            model.change(i, version++);
            SUCCEEDS(sh_source_update_end(model.runtime(), &id, 1));
        }
        if (k % 4 == 2) {
            SUCCEEDS(sh_invalidate_blocks(model.runtime(), model.ids().data(), 10));
        }
    }
    SUCCEEDS(step.launch());
    model.synchronize();
    EXPECT_EQ(step.compared(), 130u);
    EXPECT_GT(model.compared(), 50u);
}

TEST_F(Graphs, a_live_graph_holds_the_plan) {
    SoloModel model(settings(30), equal_blocks(10, 6 * kPage, Origin::pinned), forward(10));
    Step step(model, forward(10));
    const sh_stream stream = step.stream();
    SUCCEEDS(step.launch());
    SUCCEEDS(sh_device_set_budget(model.device(), 20 * kPage));
    EXPECT_REFUSED(sh_plan(model.runtime(), nullptr, nullptr), SH_ERROR_INVALID_STATE, "graphs");
    const sh_block id = model.id(3);
    EXPECT_EQ(sh_unregister_blocks(model.runtime(), &id, 1), SH_ERROR_INVALID_STATE);
    SUCCEEDS(model.step(forward(10), stream));  // under the old plan
    SUCCEEDS(step.launch());
    sh_plan_options options = SH_PLAN_OPTIONS_INIT;
    options.flags = SH_PLAN_DROP_GRAPHS;
    SUCCEEDS(sh_plan(model.runtime(), &options, nullptr));
    EXPECT_REFUSED(step.launch(), SH_ERROR_STALE, "changed");
    Step again(model, stream, forward(10));
    SUCCEEDS(again.launch(stream));
    sh_graph_destroy(again.take());
    SUCCEEDS(sh_plan(model.runtime(), nullptr, nullptr));
    SUCCEEDS(model.step(forward(10), stream));
    model.synchronize();
    EXPECT_LE(model.memory().used_bytes, 20 * kPage);
}

TEST_F(Graphs, misplaced_calls_are_refused) {
    std::vector<BlockSpec> specs = equal_blocks(8, 6 * kPage, Origin::pinned);
    specs.push_back({6 * kPage, Origin::pageable});
    specs.push_back({6 * kPage, Origin::pinned, SH_BLOCK_UNORDERED});
    SoloModel model(settings(30), specs);
    const sh_stream stream = model.stream(), other = model.stream();
    sh_graph* graph = nullptr;
    EXPECT_EQ(sh_capture_begin(model.runtime(), SH_STREAM_HOST), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(sh_capture_begin(model.runtime(), stream), SH_ERROR_INVALID_STATE);  // no plan
    EXPECT_NE(why().find("sh_plan()"), std::string::npos) << why();
    SUCCEEDS(model.schedule(forward(9)));
    model.plan();
    EXPECT_EQ(sh_capture_begin(model.runtime(), stream), SH_ERROR_INVALID_STATE);  // the stream does not capture
    EXPECT_EQ(sh_capture_end(model.runtime(), stream, &graph), SH_ERROR_INVALID_STATE);
    sh_view view = model.acquire(0, stream);
    EXPECT_EQ(sh_capture_begin(model.runtime(), stream), SH_ERROR_INVALID_STATE);
    model.release(0, stream);
    model.begin_step();
    EXPECT_EQ(sh_capture_begin(model.runtime(), stream), SH_ERROR_INVALID_STATE);
    model.end_step();

    Step step(model);
    ASSERT_EQ(step.begin(stream), SH_OK) << why();
    EXPECT_EQ(sh_capture_begin(model.runtime(), stream), SH_ERROR_INVALID_STATE);
    EXPECT_EQ(sh_step_begin(model.runtime(), nullptr), SH_ERROR_INVALID_STATE);
    EXPECT_EQ(sh_write_back(model.runtime(), nullptr, 0), SH_ERROR_INVALID_STATE);
    EXPECT_EQ(sh_acquire(model.runtime(), model.id(0), SH_STREAM_HOST, 0, &view), SH_ERROR_INVALID_STATE);
    EXPECT_EQ(sh_plan(model.runtime(), nullptr, nullptr), SH_OK);  // nothing to change
    const bool streams = model.state(8).streamed_bytes > 0;
    EXPECT_EQ(step.use(8), streams ? SH_ERROR_UNSUPPORTED : SH_OK);
    EXPECT_TRUE(!streams || why().find("pinned") != std::string::npos) << why();
    EXPECT_EQ(step.use(9), SH_ERROR_UNSUPPORTED);
    EXPECT_EQ(sh_capture_end(model.runtime(), other, &graph), SH_ERROR_INVALID_STATE);
    for (const size_t i : forward(8)) EXPECT_EQ(step.use(i), SH_OK) << why();
    view = model.acquire(0, stream);
    EXPECT_EQ(sh_capture_end(model.runtime(), stream, &graph), SH_ERROR_INVALID_STATE);
    EXPECT_EQ(sh_read_block(model.runtime(), model.id(0), stream, 0, &view, 1), SH_ERROR_INVALID_STATE);
    model.release(0, stream);
    ASSERT_EQ(step.end(), SH_OK) << why();

    EXPECT_EQ(sh_graph_leave(step.graph(), stream), SH_ERROR_INVALID_STATE);
    EXPECT_EQ(sh_graph_enter(step.graph(), SH_STREAM_HOST), SH_ERROR_INVALID_ARGUMENT);
    SUCCEEDS(sh_graph_enter(step.graph(), stream));
    EXPECT_EQ(sh_graph_enter(step.graph(), stream), SH_ERROR_INVALID_STATE);
    EXPECT_EQ(sh_graph_leave(step.graph(), other), SH_ERROR_INVALID_STATE);
    size_t streamed = 0;
    while (streamed < 8 && !model.state(streamed).streamed_bytes) streamed++;
    ASSERT_LT(streamed, 8u);
    EXPECT_EQ(model.use(streamed, stream), SH_ERROR_INVALID_STATE);
    const sh_block id = model.id(streamed);
    SUCCEEDS(sh_prefetch(model.runtime(), &id, 1));
    SUCCEEDS(sh_graph_leave(step.graph(), stream));  // no launch: the contents that a launch would load are not there
    SUCCEEDS(sh_invalidate_blocks(model.runtime(), model.ids().data(), 10));
    view = model.acquire(streamed, stream);
    EXPECT_REFUSED(step.launch(stream), SH_ERROR_HELD, "holds");
    model.release(streamed, stream);
    SUCCEEDS(step.launch(stream));
    model.synchronize();

    EXPECT_EQ(sh_graph_enter(nullptr, stream), SH_ERROR_INVALID_HANDLE);
    EXPECT_EQ(sh_graph_enter(reinterpret_cast<sh_graph*>(model.runtime()), stream), SH_ERROR_INVALID_HANDLE);
    graph = step.take();
    sh_graph_destroy(graph);
    sh_graph_destroy(graph);
    EXPECT_EQ(sh_graph_enter(graph, stream), SH_ERROR_INVALID_HANDLE);
}

TEST_F(Graphs, a_runtime_without_graphs_says_so) {
    SoloModel model({.budget_bytes = 30 * kPage}, equal_blocks(3, 6 * kPage, Origin::pinned), forward(3));
    model.plan();
    EXPECT_EQ(sh_capture_begin(model.runtime(), model.stream()), SH_ERROR_UNSUPPORTED);
}

TEST_F(Graphs, a_capture_that_is_given_up_leaves_nothing) {
    SoloModel model(settings(20), equal_blocks(6, 6 * kPage, Origin::pinned), forward(6));
    model.plan();
    const sh_stream stream = model.stream();
    for (int k = 0; k < 3; k++) {
        Step step(model);
        ASSERT_EQ(step.begin(stream), SH_OK) << why();
        EXPECT_EQ(step.use(1), SH_OK);
        SUCCEEDS(sh_capture_end(model.runtime(), stream, nullptr));
        sh_test_graph* native = nullptr;
        EXPECT_EQ(DRIVER(sh_test_capture_end)(stream, &native), SH_OK) << DRIVER(sh_test_capture_error)();
        if (native) DRIVER(sh_test_graph_destroy)(native);
        SUCCEEDS(model.step(forward(6), stream));
    }
    SUCCEEDS(sh_device_set_budget(model.device(), 30 * kPage));
    SUCCEEDS(sh_plan(model.runtime(), nullptr, nullptr));
}

TEST_F(Graphs, a_graph_may_outlive_its_runtime) {
    TestDevice device(settings(20));
    const sh_stream stream = device.stream();
    sh_graph* graph = nullptr;
    {
        Model model(device, equal_blocks(6, 6 * kPage, Origin::pinned));
        SUCCEEDS(model.schedule(forward(6)));
        model.plan();
        Step step(model, stream, forward(6));
        SUCCEEDS(step.launch(stream));
        device.synchronize();
        graph = step.take();
        model.destroy();
        EXPECT_EQ(device.memory().used_bytes, 0u);
    }
    EXPECT_EQ(sh_graph_enter(graph, stream), SH_ERROR_INVALID_HANDLE);
    sh_graph_destroy(graph);
}

}  // namespace
}  // namespace stagehand::test
