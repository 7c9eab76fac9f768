// Captured steps: what a launch brings, what it may meet when it begins, and what is refused. The capture backend has graphs with the
// rules of a driver over the host backend's real memory.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <thread>

#include "capture.h"
#include "engine.h"
#include "plugin.h"

namespace stagehand::test {
namespace {

// The capture backend's calls.
#define DRIVER(name) plugin_function<decltype(name)>("stagehand-capture.so", #name)

// A step that was captured: the engine's graph, and the library's.
class Step {
public:
    Step(TestDevice& device, Model& model) : device_(device), model_(model) {}
    ~Step() {
        sh_graph_destroy(graph_);
        if (native_) DRIVER(sh_test_graph_destroy)(native_);
    }
    Step(const Step&) = delete;

    sh_status begin(sh_stream stream) {
        stream_ = stream;
        EXPECT_EQ(DRIVER(sh_test_capture_begin)(stream), SH_OK);
        return sh_capture_begin(model_.runtime(), stream);
    }
    // Looks at the bytes after the stream was busy for `late_ns`.
    sh_status use(size_t i, sh_stream stream = 0, int64_t late_ns = 0) {
        if (!stream) stream = stream_;
        sh_view view = SH_VIEW_INIT;
        const sh_status status = sh_acquire(model_.runtime(), model_.id(i), stream, 0, &view);
        if (status != SH_OK) return status;
        checks_.push_back({this, i, static_cast<const uint8_t*>(view.address)});
        if (late_ns) {
            EXPECT_SUCCEEDS(sh_stream_launch(device_.get(), stream, nullptr, nullptr, late_ns));
        }
        EXPECT_SUCCEEDS(sh_stream_launch(device_.get(), stream, compare, &checks_.back(), 20'000));
        return sh_release(model_.runtime(), model_.id(i), stream);
    }
    sh_status end() {
        const sh_status status = sh_capture_end(model_.runtime(), stream_, &graph_);
        const sh_status native = DRIVER(sh_test_capture_end)(stream_, &native_);
        EXPECT_EQ(native, SH_OK) << DRIVER(sh_test_capture_error)();
        return status != SH_OK ? status : native;
    }
    void capture(sh_stream stream, const std::vector<size_t>& order) {
        ASSERT_EQ(begin(stream), SH_OK) << why();
        for (const size_t i : order) ASSERT_EQ(use(i), SH_OK) << why();
        ASSERT_EQ(end(), SH_OK) << why();
    }
    sh_status launch(sh_stream stream) {
        const sh_status entered = sh_graph_enter(graph_, stream);
        if (entered != SH_OK) return entered;
        EXPECT_EQ(DRIVER(sh_test_graph_launch)(native_, stream), SH_OK);
        return sh_graph_leave(graph_, stream);
    }
    sh_graph* graph() const { return graph_; }
    sh_graph* take() { return std::exchange(graph_, nullptr); }
    uint64_t compared() const { return compared_; }
    uint64_t wrong() const { return wrong_; }
    uint64_t copies() const {
        uint64_t commands = 0, copies = 0;
        DRIVER(sh_test_graph_count)(native_, &commands, &copies);
        return copies;
    }

private:
    struct Check {
        Step* step;
        size_t block;
        const uint8_t* at;
    };
    static void compare(void* data) {
        const Check& check = *static_cast<Check*>(data);
        const auto truth = check.step->model_.truth(check.block);
        check.step->compared_++;
        if (std::memcmp(check.at, truth->data(), truth->size()) != 0) check.step->wrong_++;
    }

    TestDevice& device_;
    Model& model_;
    sh_stream stream_ = 0;
    sh_graph* graph_ = nullptr;
    sh_test_graph* native_ = nullptr;
    std::deque<Check> checks_;
    std::atomic<uint64_t> compared_{0}, wrong_{0};
};

DeviceSettings settings(uint64_t pages, const std::string& more = "") {
    DeviceSettings settings;
    settings.name = "capture";
    settings.options += more;
    settings.budget_bytes = pages * kPage;
    return settings;
}

class Graphs : public testing::Test {
protected:
    void SetUp() override {
        if (!std::getenv("STAGEHAND_BACKEND_PATH")) GTEST_SKIP() << "STAGEHAND_BACKEND_PATH does not lead to the capture backend";
    }
};

TEST_F(Graphs, a_launch_streams_a_model_larger_than_the_budget) {
    for (const uint64_t pages : {12u, 20u, 40u, 64u, 200u}) {
        SCOPED_TRACE(pages);
        TestDevice device(settings(pages));
        Model model(device, unequal_blocks(20, Origin::pinned));
        SUCCEEDS(model.schedule(forward(20)));
        const sh_plan_info plan = model.plan();
        const sh_stream stream = device.stream();
        Step step(device, model);
        ASSERT_NO_FATAL_FAILURE(step.capture(stream, forward(20)));
        for (int k = 0; k < 4; k++) SUCCEEDS(step.launch(stream));
        device.synchronize();
        EXPECT_EQ(step.compared(), 80u);
        EXPECT_EQ(step.wrong(), 0u);
        EXPECT_LE(device.memory().peak_bytes, pages * kPage);
        if (plan.ring_bytes == 0) {
            EXPECT_EQ(step.copies(), 0u);
        }
    }
}

TEST_F(Graphs, a_launch_copies_each_streamed_byte_once) {
    TestDevice device(settings(30));
    Model model(device, equal_blocks(10, 6 * kPage, Origin::pinned));
    SUCCEEDS(model.schedule(forward(10)));
    model.plan();
    uint64_t streamed = 0;
    for (size_t i = 0; i < 10; i++) streamed += model.state(i).streamed_bytes;
    ASSERT_GT(streamed, 0u);
    const sh_stream stream = device.stream();
    Step step(device, model);
    ASSERT_NO_FATAL_FAILURE(step.capture(stream, forward(10)));
    SUCCEEDS(step.launch(stream));
    const uint64_t before = model.stats().bytes_to_device;
    SUCCEEDS(step.launch(stream));
    EXPECT_EQ(model.stats().bytes_to_device - before, streamed);
    device.synchronize();
    EXPECT_EQ(step.wrong(), 0u);
}

TEST_F(Graphs, forward_then_backward_finds_what_is_still_there) {
    TestDevice device(settings(30));
    Model model(device, equal_blocks(10, 6 * kPage, Origin::pinned));
    SUCCEEDS(model.schedule(forward_backward(10)));
    model.plan();
    const sh_stream stream = device.stream();
    Step step(device, model);
    ASSERT_NO_FATAL_FAILURE(step.capture(stream, forward_backward(10)));
    for (int k = 0; k < 3; k++) SUCCEEDS(step.launch(stream));
    device.synchronize();
    EXPECT_EQ(step.compared(), 60u);
    EXPECT_EQ(step.wrong(), 0u);
}

TEST_F(Graphs, launches_meet_new_contents_invalidations_eager_steps_and_other_streams) {
    TestDevice device(settings(30, ";jitter_us=100;jitter_seed=5"));
    Model model(device, unequal_blocks(10, Origin::pinned));
    SUCCEEDS(model.schedule(forward(10)));
    model.plan();
    const sh_stream stream = device.stream(), other = device.stream();
    Step step(device, model);
    ASSERT_NO_FATAL_FAILURE(step.capture(stream, forward(10)));
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
            device.synchronize();   // what was launched compares with the old contents
            SUCCEEDS(sh_source_update_begin(model.runtime(), &id, 1));
            EXPECT_EQ(sh_graph_enter(step.graph(), stream), SH_ERROR_BUSY);
            model.change(i, version++);
            SUCCEEDS(sh_source_update_end(model.runtime(), &id, 1));
        }
        if (k % 4 == 2) {
            SUCCEEDS(sh_invalidate_blocks(model.runtime(), model.ids().data(), 10));
        }
    }
    SUCCEEDS(step.launch(stream));
    device.synchronize();
    EXPECT_EQ(step.compared(), 130u);
    EXPECT_EQ(step.wrong(), 0u);
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    EXPECT_GT(model.compared(), 50u);
}

TEST_F(Graphs, a_launch_comes_after_what_other_streams_still_do) {
    TestDevice device(settings(34));
    Model model(device, equal_blocks(6, 6 * kPage, Origin::pinned));
    SUCCEEDS(model.schedule(forward(6)));
    model.plan();
    const sh_stream stream = device.stream(), other = device.stream();
    std::vector<size_t> streamed;
    for (size_t i = 0; i < 6; i++)
        if (model.state(i).streamed_bytes) streamed.push_back(i);
    ASSERT_FALSE(streamed.empty());
    Step step(device, model);
    ASSERT_NO_FATAL_FAILURE(step.capture(stream, {streamed[0]}));
    for (uint64_t version = 1; version < 6; version++) {
        // What is there is looked at late, and the launch brings other contents.
        sh_view view = SH_VIEW_INIT;
        SUCCEEDS(sh_acquire(model.runtime(), model.id(streamed[0]), other, 0, &view));
        SUCCEEDS(sh_runtime_synchronize(model.runtime()));
        SUCCEEDS(sh_stream_launch(device.get(), other, nullptr, nullptr, 10'000'000));
        SUCCEEDS(model.compare(streamed[0], view, other));
        SUCCEEDS(sh_release(model.runtime(), model.id(streamed[0]), other));
        model.change(streamed[0], version);
        SUCCEEDS(step.launch(stream));
        device.synchronize();
    }
    EXPECT_EQ(step.wrong(), 0u);
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

// A launch fills the ring behind the library's back: a view after it must not be told that what lay there before still does.
TEST_F(Graphs, views_after_a_launch_show_their_own_bytes) {
    TestDevice device(settings(20));
    Model model(device, equal_blocks(6, 6 * kPage, Origin::pinned));
    SUCCEEDS(model.schedule(forward(6)));
    model.plan();
    const sh_stream stream = device.stream();
    Step step(device, model);
    ASSERT_NO_FATAL_FAILURE(step.capture(stream, forward(6)));
    for (size_t first = 0; first < 6; first++) {
        SUCCEEDS(model.use(first, stream));   // brings it, whatever the launch puts in its place
        SUCCEEDS(step.launch(stream));
        for (size_t n = 0; n < 6; n++) SUCCEEDS(model.use((first + n) % 6, stream));
    }
    device.synchronize();
    EXPECT_EQ(step.wrong(), 0u);
    EXPECT_EQ(model.compared(), 42u);
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

// Inside a step the events of uses are recorded only when somebody has to wait: a launch is somebody.
TEST_F(Graphs, a_launch_waits_for_uses_whose_events_nobody_recorded) {
    TestDevice device(settings(20));
    Model model(device, equal_blocks(6, 6 * kPage, Origin::pinned));
    SUCCEEDS(model.schedule(forward(6)));
    model.plan();
    const sh_stream stream = device.stream(), other = device.stream();
    Step step(device, model);
    ASSERT_NO_FATAL_FAILURE(step.capture(stream, forward(6)));
    for (size_t i = 0; i < 6; i++) {
        SUCCEEDS(sh_step_begin(model.runtime()));
        SUCCEEDS(model.use(i, other));   // the stream is known from here on
        sh_view view = SH_VIEW_INIT;
        SUCCEEDS(sh_acquire(model.runtime(), model.id(i), other, 0, &view));
        SUCCEEDS(sh_stream_launch(device.get(), other, nullptr, nullptr, 10'000'000));
        SUCCEEDS(model.compare(i, view, other));
        SUCCEEDS(sh_release(model.runtime(), model.id(i), other));
        SUCCEEDS(step.launch(stream));
        SUCCEEDS(sh_step_end(model.runtime()));
        device.synchronize();
    }
    EXPECT_EQ(step.wrong(), 0u);
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

// Each copy inside a graph waits for the last uses, on both streams, of all the pages that it writes. Some blocks are left out now and
// then, so that what lies in a page is not always what the order says.
TEST_F(Graphs, copies_in_a_graph_wait_for_uses_on_all_streams) {
    TestDevice device(settings(14));
    Model model(device, equal_blocks(8, 5 * kPage, Origin::pinned));
    SUCCEEDS(model.schedule(forward(8)));
    model.plan();
    const sh_stream stream = device.stream(), other = device.stream();
    for (size_t k = 0; k < 6; k++) {
        Step step(device, model);
        ASSERT_EQ(step.begin(stream), SH_OK) << why();
        SUCCEEDS(DRIVER(sh_test_follow)(other, stream));
        for (size_t i = 0; i < 8; i++) {
            if (k && (i + k) % 5 == 0) continue;
            const bool late = (i + k) % 2;
            SUCCEEDS(step.use(i, late ? other : stream, late ? 2'000'000 : 0));
        }
        SUCCEEDS(DRIVER(sh_test_follow)(stream, other));
        ASSERT_EQ(step.end(), SH_OK) << why();
        for (int n = 0; n < 2; n++) SUCCEEDS(step.launch(stream));
        device.synchronize();
        EXPECT_GT(step.compared(), 11u);
        EXPECT_EQ(step.wrong(), 0u) << k;
    }
}

// Loads and uses that are still under way when the capture begins neither become part of it nor are they waited for in it.
TEST_F(Graphs, a_graph_holds_nothing_of_what_was_under_way) {
    TestDevice device(settings(30, ";jitter_us=2000;jitter_seed=3"));
    std::vector<BlockSpec> specs = equal_blocks(10, 6 * kPage, Origin::pinned);
    specs.push_back({6 * kPage, Origin::pageable});
    Model model(device, specs);
    SUCCEEDS(model.schedule(forward(11)));
    model.plan();
    const sh_stream stream = device.stream(), other = device.stream();
    uint64_t quiet = 0;
    for (int k = 0; k < 8; k++) {
        if (k) {
            SUCCEEDS(sh_invalidate_blocks(model.runtime(), model.ids().data(), 11));
            SUCCEEDS(model.step(forward(11), other));   // at its end the next one's first blocks are being brought
            SUCCEEDS(sh_prefetch(model.runtime(), model.ids().data(), 11));
        }
        Step step(device, model);
        ASSERT_NO_FATAL_FAILURE(step.capture(stream, forward(10)));
        if (!k) quiet = step.copies();
        ASSERT_GT(quiet, 0u);
        EXPECT_EQ(step.copies(), quiet);
        SUCCEEDS(step.launch(stream));
        device.synchronize();
        EXPECT_EQ(step.wrong(), 0u);
    }
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

TEST_F(Graphs, what_a_launch_left_is_found_by_eager_views) {
    TestDevice device(settings(20));
    Model model(device, equal_blocks(6, 6 * kPage, Origin::pinned));
    SUCCEEDS(model.schedule(forward(6)));
    model.plan();
    size_t last = 5;   // that streams
    while (last > 0 && !model.state(last).streamed_bytes) last--;
    const sh_stream stream = device.stream();
    Step step(device, model);
    ASSERT_NO_FATAL_FAILURE(step.capture(stream, forward(6)));
    SUCCEEDS(step.launch(stream));
    const uint64_t hits = model.stats().hits;
    SUCCEEDS(model.use(last));   // on the host, which waits for the launch
    EXPECT_EQ(model.stats().hits, hits + 1);
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    sh_view view = SH_VIEW_INIT;
    SUCCEEDS(sh_stream_launch(device.get(), stream, nullptr, nullptr, 20'000'000));
    SUCCEEDS(step.launch(stream));
    EXPECT_EQ(sh_acquire(model.runtime(), model.id(last), SH_STREAM_HOST, SH_ACQUIRE_NO_WAIT, &view), SH_NOT_READY);
    device.synchronize();
    SUCCEEDS(model.use(last));
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

TEST_F(Graphs, what_the_engine_changed_is_written_back_before_a_launch) {
    for (const Origin origin : {Origin::pinned, Origin::pageable}) {
        TestDevice device(settings(20));
        std::vector<BlockSpec> specs = equal_blocks(5, 6 * kPage, Origin::pinned);
        specs.push_back({6 * kPage, origin, SH_BLOCK_MUTABLE});
        Model model(device, specs);
        SUCCEEDS(model.schedule(forward(6)));
        model.plan();
        const sh_stream stream = device.stream();
        Step step(device, model);
        ASSERT_NO_FATAL_FAILURE(step.capture(stream, forward(5)));
        sh_view view = SH_VIEW_INIT;
        SUCCEEDS(sh_acquire(model.runtime(), model.id(5), stream, 0, &view));
        SUCCEEDS(model.overwrite(5, view, 7, stream));
        SUCCEEDS(sh_release(model.runtime(), model.id(5), stream));
        SUCCEEDS(step.launch(stream));
        SUCCEEDS(model.use(5, stream));   // what it did itself there, it orders itself
        SUCCEEDS(sh_write_back(model.runtime(), nullptr, 0));
        EXPECT_EQ(model.source(5).read(), *model.truth(5));
        device.synchronize();
        EXPECT_EQ(step.wrong(), 0u);
        EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    }
}

TEST_F(Graphs, a_live_graph_holds_the_plan) {
    TestDevice device(settings(30));
    Model model(device, equal_blocks(10, 6 * kPage, Origin::pinned));
    SUCCEEDS(model.schedule(forward(10)));
    model.plan();
    const sh_stream stream = device.stream();
    Step step(device, model);
    ASSERT_NO_FATAL_FAILURE(step.capture(stream, forward(10)));
    SUCCEEDS(step.launch(stream));
    SUCCEEDS(sh_device_set_budget(device.get(), 20 * kPage));
    EXPECT_EQ(sh_plan(model.runtime(), nullptr, nullptr), SH_ERROR_BUSY);
    EXPECT_NE(why().find("graphs"), std::string::npos) << why();
    const sh_block id = model.id(3);
    EXPECT_EQ(sh_unregister_blocks(model.runtime(), &id, 1), SH_ERROR_BUSY);
    SUCCEEDS(model.step(forward(10), stream));   // under the old plan
    SUCCEEDS(step.launch(stream));
    sh_plan_options options = SH_PLAN_OPTIONS_INIT;
    options.flags = SH_PLAN_DROP_GRAPHS;
    SUCCEEDS(sh_plan(model.runtime(), &options, nullptr));
    EXPECT_EQ(step.launch(stream), SH_ERROR_STALE);
    EXPECT_NE(why().find("changed"), std::string::npos) << why();
    Step again(device, model);
    ASSERT_NO_FATAL_FAILURE(again.capture(stream, forward(10)));
    SUCCEEDS(again.launch(stream));
    sh_graph_destroy(again.take());
    SUCCEEDS(sh_plan(model.runtime(), nullptr, nullptr));
    SUCCEEDS(model.step(forward(10), stream));
    device.synchronize();
    EXPECT_EQ(step.wrong() + again.wrong(), 0u);
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    EXPECT_LE(device.memory().used_bytes, 20 * kPage);
}

TEST_F(Graphs, misplaced_calls_are_refused) {
    TestDevice device(settings(30));
    std::vector<BlockSpec> specs = equal_blocks(8, 6 * kPage, Origin::pinned);
    specs.push_back({6 * kPage, Origin::pageable});
    specs.push_back({6 * kPage, Origin::pinned, SH_BLOCK_UNORDERED});
    Model model(device, specs);
    const sh_stream stream = device.stream(), other = device.stream();
    sh_graph* graph = nullptr;
    EXPECT_EQ(sh_capture_begin(model.runtime(), SH_STREAM_HOST), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(sh_capture_begin(model.runtime(), stream), SH_ERROR_INVALID_STATE);   // no plan
    EXPECT_NE(why().find("sh_plan()"), std::string::npos) << why();
    SUCCEEDS(model.schedule(forward(9)));
    model.plan();
    EXPECT_EQ(sh_capture_begin(model.runtime(), stream), SH_ERROR_INVALID_STATE);   // the stream does not capture
    EXPECT_EQ(sh_capture_end(model.runtime(), stream, &graph), SH_ERROR_INVALID_STATE);
    sh_view view = SH_VIEW_INIT;
    SUCCEEDS(sh_acquire(model.runtime(), model.id(0), stream, 0, &view));
    EXPECT_EQ(sh_capture_begin(model.runtime(), stream), SH_ERROR_BUSY);
    SUCCEEDS(sh_release(model.runtime(), model.id(0), stream));
    SUCCEEDS(sh_step_begin(model.runtime()));
    EXPECT_EQ(sh_capture_begin(model.runtime(), stream), SH_ERROR_INVALID_STATE);
    SUCCEEDS(sh_step_end(model.runtime()));

    Step step(device, model);
    ASSERT_EQ(step.begin(stream), SH_OK) << why();
    EXPECT_EQ(sh_capture_begin(model.runtime(), stream), SH_ERROR_INVALID_STATE);
    EXPECT_EQ(sh_step_begin(model.runtime()), SH_ERROR_BUSY);
    EXPECT_EQ(sh_write_back(model.runtime(), nullptr, 0), SH_ERROR_BUSY);
    EXPECT_EQ(sh_acquire(model.runtime(), model.id(0), SH_STREAM_HOST, 0, &view), SH_ERROR_BUSY);
    EXPECT_EQ(sh_plan(model.runtime(), nullptr, nullptr), SH_OK);   // nothing to change
    const bool streams = model.state(8).streamed_bytes > 0;
    EXPECT_EQ(step.use(8), streams ? SH_ERROR_UNSUPPORTED : SH_OK);
    EXPECT_TRUE(!streams || why().find("pinned") != std::string::npos) << why();
    EXPECT_EQ(step.use(9), SH_ERROR_UNSUPPORTED);
    EXPECT_EQ(sh_capture_end(model.runtime(), other, &graph), SH_ERROR_INVALID_STATE);
    for (const size_t i : forward(8)) EXPECT_EQ(step.use(i), SH_OK) << why();
    SUCCEEDS(sh_acquire(model.runtime(), model.id(0), stream, 0, &view));
    EXPECT_EQ(sh_capture_end(model.runtime(), stream, &graph), SH_ERROR_INVALID_STATE);
    EXPECT_EQ(sh_read_block(model.runtime(), model.id(0), stream, 0, &view, 1), SH_ERROR_BUSY);
    SUCCEEDS(sh_release(model.runtime(), model.id(0), stream));
    ASSERT_EQ(step.end(), SH_OK) << why();

    EXPECT_EQ(sh_graph_leave(step.graph(), stream), SH_ERROR_INVALID_STATE);
    EXPECT_EQ(sh_graph_enter(step.graph(), SH_STREAM_HOST), SH_ERROR_INVALID_ARGUMENT);
    SUCCEEDS(sh_graph_enter(step.graph(), stream));
    EXPECT_EQ(sh_graph_enter(step.graph(), stream), SH_ERROR_INVALID_STATE);
    EXPECT_EQ(sh_graph_leave(step.graph(), other), SH_ERROR_INVALID_STATE);
    size_t streamed = 0;
    while (streamed < 8 && !model.state(streamed).streamed_bytes) streamed++;
    ASSERT_LT(streamed, 8u);
    EXPECT_EQ(model.use(streamed, stream), SH_ERROR_BUSY);
    const sh_block id = model.id(streamed);
    SUCCEEDS(sh_prefetch(model.runtime(), &id, 1));
    SUCCEEDS(sh_graph_leave(step.graph(), stream));   // without a launch: what was said to be there is not
    SUCCEEDS(sh_invalidate_blocks(model.runtime(), model.ids().data(), 10));
    SUCCEEDS(sh_acquire(model.runtime(), model.id(streamed), stream, 0, &view));
    EXPECT_EQ(step.launch(stream), SH_ERROR_HELD);
    EXPECT_NE(why().find("holds"), std::string::npos) << why();
    SUCCEEDS(sh_release(model.runtime(), model.id(streamed), stream));
    SUCCEEDS(step.launch(stream));
    device.synchronize();
    EXPECT_EQ(step.wrong(), 0u);

    EXPECT_EQ(sh_graph_enter(nullptr, stream), SH_ERROR_INVALID_HANDLE);
    EXPECT_EQ(sh_graph_enter(reinterpret_cast<sh_graph*>(model.runtime()), stream), SH_ERROR_INVALID_HANDLE);
    graph = step.take();
    sh_graph_destroy(graph);
    sh_graph_destroy(graph);
    EXPECT_EQ(sh_graph_enter(graph, stream), SH_ERROR_INVALID_HANDLE);
}

TEST_F(Graphs, a_runtime_without_graphs_says_so) {
    TestDevice device({.budget_bytes = 30 * kPage});
    Model model(device, equal_blocks(3, 6 * kPage, Origin::pinned));
    SUCCEEDS(model.schedule(forward(3)));
    model.plan();
    EXPECT_EQ(sh_capture_begin(model.runtime(), device.stream()), SH_ERROR_UNSUPPORTED);
}

TEST_F(Graphs, a_capture_that_is_given_up_leaves_nothing) {
    TestDevice device(settings(20));
    Model model(device, equal_blocks(6, 6 * kPage, Origin::pinned));
    SUCCEEDS(model.schedule(forward(6)));
    model.plan();
    const sh_stream stream = device.stream();
    for (int k = 0; k < 3; k++) {
        Step step(device, model);
        ASSERT_EQ(step.begin(stream), SH_OK) << why();
        EXPECT_EQ(step.use(1), SH_OK);
        SUCCEEDS(sh_capture_end(model.runtime(), stream, nullptr));
        sh_test_graph* native = nullptr;
        EXPECT_EQ(DRIVER(sh_test_capture_end)(stream, &native), SH_OK) << DRIVER(sh_test_capture_error)();
        if (native) DRIVER(sh_test_graph_destroy)(native);
        SUCCEEDS(model.step(forward(6), stream));
    }
    SUCCEEDS(sh_device_set_budget(device.get(), 30 * kPage));
    SUCCEEDS(sh_plan(model.runtime(), nullptr, nullptr));
    device.synchronize();
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

TEST_F(Graphs, a_graph_may_outlive_its_runtime) {
    TestDevice device(settings(20));
    const sh_stream stream = device.stream();
    sh_graph* graph = nullptr;
    {
        Model model(device, equal_blocks(6, 6 * kPage, Origin::pinned));
        SUCCEEDS(model.schedule(forward(6)));
        model.plan();
        Step step(device, model);
        ASSERT_NO_FATAL_FAILURE(step.capture(stream, forward(6)));
        SUCCEEDS(step.launch(stream));
        device.synchronize();
        graph = step.take();
        model.destroy();
        EXPECT_EQ(device.memory().used_bytes, 0u);
    }
    EXPECT_EQ(sh_graph_enter(graph, stream), SH_ERROR_INVALID_HANDLE);
    sh_graph_destroy(graph);
}

// Another runtime's eager steps, on another thread, and the library's own threads do nothing that a capture must not see.
TEST_F(Graphs, captures_and_eager_steps_of_others_do_not_meet) {
    TestDevice device(settings(80));
    sh_runtime_options half = SH_RUNTIME_OPTIONS_INIT;   // so that neither asks the other for memory
    half.max_bytes = 40 * kPage;
    Model captured(device, equal_blocks(10, 6 * kPage, Origin::pinned), half);
    SUCCEEDS(captured.schedule(forward(10)));
    captured.plan();
    Model eager(device, unequal_blocks(10, Origin::pageable), half);
    const sh_stream stream = device.stream(), other = device.stream();
    std::atomic<bool> done{false};
    std::thread worker([&] {
        while (!done) EXPECT_SUCCEEDS(eager.step(forward(10), other));
    });
    for (int k = 0; k < 10; k++) {
        Step step(device, captured);
        step.capture(stream, forward(10));
        for (int n = 0; n < 3; n++) EXPECT_EQ(step.launch(stream), SH_OK) << why();
        EXPECT_SUCCEEDS(sh_stream_synchronize(device.get(), stream));
        EXPECT_EQ(step.compared(), 30u);
        EXPECT_EQ(step.wrong(), 0u);
    }
    done = true;
    worker.join();
    device.synchronize();
    EXPECT_EQ(eager.wrong_uses(), 0u) << eager.first_wrong();
}

}  // namespace
}  // namespace stagehand::test
