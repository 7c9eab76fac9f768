// Captured steps and everything else: shares of other models, updates of sources, plans that are made in a step,
// cancelled captures, and launches in the counters.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "captured_step.h"

namespace stagehand::test {
namespace {

std::unique_ptr<Model> make(TestDevice& device, size_t blocks, const char* name, uint64_t max_bytes = 0) {
    auto model = std::make_unique<Model>(device, equal_blocks(blocks, kBlock, Origin::pinned),
                                         RuntimeSettings{.name = name, .max_bytes = max_bytes});
    EXPECT_SUCCEEDS(model->schedule(forward(blocks)));
    return model;
}

TEST_F(Graphs, a_model_is_captured_while_anothers_graph_holds_part_of_its_share) {
    TestDevice device(settings(64));
    auto a = make(device, 16, "a", 48 * kPage), b = make(device, 16, "b");
    const sh_stream stream = device.stream(), other = device.stream();
    a->plan();
    Step first(*a, stream, forward(16));
    b->plan();
    EXPECT_GT(b->stats().share_bytes, b->stats().held_bytes);
    {
        Step second(*b, other, forward(16));
        for (int k = 0; k < 3; k++) {
            SUCCEEDS(first.launch(stream));
            SUCCEEDS(second.launch(other));
        }
        sh_graph_destroy(first.take());
        SUCCEEDS(a->step(forward(16), stream));  // gives up memory beyond its share
        SUCCEEDS(second.launch(other));
    }
    const uint64_t held = b->stats().held_bytes;
    SUCCEEDS(sh_trim(a->runtime(), 0, nullptr));  // shares follow the times of use, which differ from run to run
    SUCCEEDS(b->step(forward(16), other));
    EXPECT_GT(b->stats().held_bytes, held) << "no graph holds its plan any more";
}

TEST_F(Graphs, a_plan_that_holds_more_than_its_share_is_not_captured) {
    TestDevice device(settings(64));
    auto model = make(device, 16, "model");
    const sh_stream stream = device.stream();
    model->plan();
    model->acquire(0);
    SUCCEEDS(sh_device_set_budget(device.get(), 32 * kPage));  // it cannot give up anything now
    model->release(0);
    {
        Step refused(*model);
        EXPECT_REFUSED(refused.begin(stream), SH_ERROR_INVALID_STATE, "sh_plan()");
        sh_test_graph* native = nullptr;
        EXPECT_EQ(DRIVER(sh_test_capture_end)(stream, &native), SH_OK);
        DRIVER(sh_test_graph_destroy)(native);
    }
    model->plan();
    SUCCEEDS(sh_plan(model->runtime(), nullptr, nullptr));
    EXPECT_LE(model->stats().held_bytes, 32 * kPage);
    Step step(*model, stream, forward(16));
    SUCCEEDS(step.launch(stream));
}

TEST_F(Graphs, sources_of_a_graph_that_has_been_entered_are_not_updated) {
    SoloModel model(settings(30), equal_blocks(10, 6 * kPage, Origin::pinned), forward(10));
    Step step(model, forward(8));
    const sh_stream stream = step.stream();
    SUCCEEDS(sh_graph_enter(step.graph(), stream));
    for (size_t i = 0; i < 8; i++) {
        const sh_block ids[] = {model.id(9), model.id(i)};
        EXPECT_EQ(sh_source_update_begin(model.runtime(), ids, 2), SH_ERROR_INVALID_STATE) << i;
        EXPECT_NE(why().find("entered"), std::string::npos) << why();
    }
    const sh_block outside = model.id(9);  // the refused calls began no load of it
    SUCCEEDS(sh_source_update_begin(model.runtime(), &outside, 1));
    model.change(9, 1);
    SUCCEEDS(sh_source_update_end(model.runtime(), &outside, 1));
    SUCCEEDS(sh_graph_leave(step.graph(), stream));
    SUCCEEDS(sh_source_update_begin(model.runtime(), model.ids().data(), 8));
    for (size_t i = 0; i < 8; i++) model.change(i, 1);
    SUCCEEDS(sh_source_update_end(model.runtime(), model.ids().data(), 8));
    SUCCEEDS(step.launch());
    SUCCEEDS(model.step(forward(10), stream));
}

// The launch reads the source until its last use, and the call that begins the update returns then.
TEST_F(Graphs, sources_are_not_updated_while_a_launch_reads_them) {
    SoloModel model(settings(30), equal_blocks(10, 6 * kPage, Origin::pinned), forward(10));
    model.plan();
    const sh_stream stream = model.stream();
    Step step(model);
    SUCCEEDS(step.begin(stream));
    for (size_t i = 0; i < 10; i++) SUCCEEDS(step.use(i, stream, 1'000'000));
    SUCCEEDS(step.end());
    for (uint64_t k = 0; k < 3; k++) {
        SUCCEEDS(step.launch(stream));
        const sh_block id = model.id(8);
        SUCCEEDS(sh_source_update_begin(model.runtime(), &id, 1));
        EXPECT_EQ(step.compared(), 10 * (k + 1));
        model.change(8, k + 1);
        SUCCEEDS(sh_source_update_end(model.runtime(), &id, 1));
    }
}

TEST_F(Graphs, a_capture_can_always_be_cancelled) {
    TestDevice device(settings(20));
    auto model = make(device, 10, "model");
    model->plan();
    const sh_stream stream = device.stream();
    auto view = sh_sized<sh_view>();
    for (const bool driver_first : {false, true}) {
        Step step(*model);
        ASSERT_EQ(step.begin(stream), SH_OK) << why();
        EXPECT_EQ(step.use(1), SH_OK);
        view = model->acquire(2, stream);
        view = model->acquire(2, stream);
        sh_test_graph* native = nullptr;
        if (driver_first) (void)DRIVER(sh_test_capture_end)(stream, &native);  // invalid: the copies are not joined
        sh_graph* graph = nullptr;
        EXPECT_EQ(sh_capture_end(model->runtime(), stream, &graph), SH_ERROR_INVALID_STATE) << "a graph is wanted";
        SUCCEEDS(sh_capture_end(model->runtime(), stream, nullptr));
        EXPECT_EQ(model->state(2).held, 0u);
        EXPECT_EQ(sh_release(model->runtime(), model->id(2), stream), SH_ERROR_INVALID_STATE);
        EXPECT_EQ(sh_capture_end(model->runtime(), stream, nullptr), SH_ERROR_INVALID_STATE) << "it has ended";
        if (!driver_first) {
            EXPECT_EQ(DRIVER(sh_test_capture_end)(stream, &native), SH_OK) << DRIVER(sh_test_capture_error)();
        }
        if (native) DRIVER(sh_test_graph_destroy)(native);
        SUCCEEDS(model->step(forward(10), stream));
        SUCCEEDS(sh_plan(model->runtime(), nullptr, nullptr));  // no views are held
    }
    Step step(*model, stream, forward(10));
    SUCCEEDS(step.launch(stream));
}

// The capture on that stream belongs to the engine alone. The library's commands would become part of it.
TEST_F(Graphs, launches_and_reads_are_refused_on_a_stream_that_captures) {
    SoloModel model(settings(30), equal_blocks(10, 6 * kPage, Origin::pinned), forward(10));
    Step step(model, forward(10));
    const sh_stream captures = model.stream();
    model.acquire(0);
    ASSERT_EQ(DRIVER(sh_test_capture_begin)(captures), SH_OK);
    uint8_t byte = 0;
    EXPECT_EQ(sh_read_block(model.runtime(), model.id(0), captures, 0, &byte, 1), SH_ERROR_INVALID_STATE);
    EXPECT_EQ(sh_graph_enter(step.graph(), captures), SH_ERROR_INVALID_STATE);
    sh_test_graph* native = nullptr;
    EXPECT_EQ(DRIVER(sh_test_capture_end)(captures, &native), SH_OK) << DRIVER(sh_test_capture_error)();
    if (native) DRIVER(sh_test_graph_destroy)(native);
    SUCCEEDS(sh_read_block(model.runtime(), model.id(0), captures, 0, &byte, 1));
    EXPECT_EQ(byte, model.truth(0)->front());
    model.release(0);
    SUCCEEDS(step.launch(captures));
}

TEST_F(Graphs, many_blocks_are_acquired_at_once_in_a_capture) {
    SoloModel model(settings(80), equal_blocks(10, 6 * kPage, Origin::pinned), forward(10));
    model.plan();
    const sh_stream stream = model.stream();
    Step step(model);
    SUCCEEDS(step.begin(stream));
    const sh_block some[] = {model.id(0), model.id(1), model.id(2)};
    sh_view views[3];
    for (sh_view& view : views) view = sh_sized<sh_view>();
    SUCCEEDS(sh_acquire_many(model.runtime(), some, 3, stream, 0, views));
    for (size_t i = 0; i < 3; i++) {
        EXPECT_NE(views[i].address, nullptr) << i;
        let_go(model.runtime(), some[i], stream);
    }
    SUCCEEDS(step.end());
    SUCCEEDS(step.launch(stream));
}

// Saved tensors neither leave nor come back in a graph: their copies are of one step alone.
TEST_F(Graphs, tensors_are_not_spilled_on_a_stream_that_captures) {
    TestDevice device(settings(30));
    const sh_stream stream = device.stream(), captures = device.stream();
    sh_spiller_options options = SH_SPILLER_OPTIONS_INIT;
    options.flags = SH_SPILLER_KEEP_BYTES;
    sh_spiller* spiller = nullptr;
    SUCCEEDS(sh_spiller_create(device.get(), &options, &spiller));
    std::vector<uint8_t> memory(64 << 10, 7), back(64 << 10);
    const int64_t bytes = 64 << 10;
    sh_saved_tensor tensor = SH_SAVED_TENSOR_INIT;
    tensor.element_bytes = 1;
    tensor.address = reinterpret_cast<uint64_t>(memory.data());
    tensor.dimensions = 1;
    tensor.sizes = &bytes;
    sh_ticket ticket = 0, refused = 0;
    SUCCEEDS(sh_spill(spiller, &tensor, stream, 0, &ticket));
    uint64_t count = 1;
    sh_ticket named = 0;
    SUCCEEDS(sh_spiller_collect(spiller, stream, SH_COLLECT_ALL, &named, 1, &count));
    ASSERT_EQ(count, 1u);
    ASSERT_EQ(DRIVER(sh_test_capture_begin)(captures), SH_OK);
    EXPECT_REFUSED(sh_spill(spiller, &tensor, captures, 0, &refused), SH_ERROR_UNSUPPORTED, "captures a graph");
    const uint64_t to = reinterpret_cast<uint64_t>(back.data());
    EXPECT_EQ(sh_restore(spiller, ticket, to, captures), SH_ERROR_UNSUPPORTED);
    sh_test_graph* native = nullptr;
    EXPECT_EQ(DRIVER(sh_test_capture_end)(captures, &native), SH_OK) << DRIVER(sh_test_capture_error)();
    DRIVER(sh_test_graph_destroy)(native);
    SUCCEEDS(sh_restore(spiller, ticket, to, stream));
    SUCCEEDS(sh_stream_synchronize(device.get(), stream));
    EXPECT_EQ(back, memory);
    sh_spiller_destroy(spiller);
}

TEST_F(Graphs, a_runtime_that_does_not_capture_is_not_used_on_a_stream_that_does) {
    TestDevice device(settings(64));
    auto streams = make(device, 16, "streams", 20 * kPage), resident = make(device, 6, "resident");
    const sh_stream known = device.stream(), fresh = device.stream(), other = device.stream();
    for (int k = 0; k < 3; k++) {
        SUCCEEDS(streams->step(forward(16), known));
        SUCCEEDS(resident->step(forward(6), known));
    }
    device.synchronize();
    for (const sh_stream stream : {known, fresh}) {
        SCOPED_TRACE(stream == known ? "known" : "fresh");
        ASSERT_EQ(DRIVER(sh_test_capture_begin)(stream), SH_OK);
        auto view = sh_sized<sh_view>();
        const auto refused = [&](sh_status status) {
            EXPECT_REFUSED(status, SH_ERROR_INVALID_STATE, "begin a capture of this runtime first");
        };
        refused(sh_acquire(streams->runtime(), streams->id(15), stream, 0, &view));
        refused(sh_acquire_many(streams->runtime(), &streams->ids()[15], 1, stream, 0, &view));
        EXPECT_EQ(streams->state(15).held, 0u);
        // A block that is there needs no copy. The mistake is noticed when something would have to wait for the stream.
        const sh_block block = resident->id(0);
        const auto is_there = [&] {
            const sh_status status = sh_acquire(resident->runtime(), block, stream, 0, &view);
            if (status != SH_OK) refused(status);
            return status == SH_OK;
        };
        if (is_there()) {
            refused(sh_release(resident->runtime(), block, stream));
            EXPECT_EQ(resident->state(0).held, 1u);
            let_go(resident->runtime(), block);
        }
        resident->begin_step();
        if (!is_there()) {
            resident->end_step();
        } else if (sh_release(resident->runtime(), block, stream) ==
                   SH_OK) {  // inside a step, a release on a known stream is only noted
            EXPECT_EQ(stream, known);
            refused(sh_step_end(resident->runtime()));
        } else {
            let_go(resident->runtime(), block);
            resident->end_step();
        }
        SUCCEEDS(streams->step(forward(16), other));  // the runtime works on other streams
        sh_test_graph* native = nullptr;
        EXPECT_EQ(DRIVER(sh_test_capture_end)(stream, &native), SH_OK) << DRIVER(sh_test_capture_error)();
        if (native) DRIVER(sh_test_graph_destroy)(native);
        SUCCEEDS(resident->step(forward(6), stream));
        SUCCEEDS(streams->step(forward(16), stream));
        SUCCEEDS(sh_trim(resident->runtime(), 0, nullptr));
        SUCCEEDS(sh_trim(streams->runtime(), 0, nullptr));
        for (int k = 0; k < 3; k++) {
            SUCCEEDS(resident->step(forward(6), known));
            SUCCEEDS(streams->step(forward(16), known));
        }
        device.synchronize();
    }
}

// The step waits for a launch before it drops graphs. A view that is acquired meanwhile keeps the step from making a
// plan, and that would be another error.
TEST_F(Graphs, a_step_that_waits_for_a_launch_is_told_that_its_runtime_goes) {
    TestDevice device(settings(48));
    auto model = make(device, 16, "model");
    const sh_stream stream = device.stream();
    model->plan();
    size_t resident = 0;
    while (resident < 15 && model->state(resident).streamed_bytes) resident++;
    ASSERT_EQ(model->state(resident).streamed_bytes, 0u);
    Step step(*model, stream, forward(16));
    SUCCEEDS(sh_device_set_budget(device.get(), 32 * kPage));
    sh_plan_options options = SH_PLAN_OPTIONS_INIT;
    options.flags = SH_PLAN_DROP_GRAPHS;
    model->begin_step();
    SUCCEEDS(sh_plan(model->runtime(), &options, nullptr));
    std::atomic<bool> open{false};
    const auto wait = [](void* opened) {
        while (!*static_cast<std::atomic<bool>*>(opened)) std::this_thread::sleep_for(std::chrono::microseconds(100));
    };
    SUCCEEDS(sh_stream_launch(device.get(), stream, wait, &open, -1));
    SUCCEEDS(step.launch(stream));
    model->end_step();
    std::atomic<bool> begins{false};
    std::thread waits([&begins, runtime = model->runtime()] {
        begins = true;
        EXPECT_EQ(sh_step_begin(runtime, nullptr), SH_ERROR_CANCELLED);
    });
    while (!begins) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    auto view = sh_sized<sh_view>();
    EXPECT_SUCCEEDS(sh_acquire(model->runtime(), model->id(resident), stream, 0, &view));
    std::thread destroys([&] { model->destroy(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    open = true;
    waits.join();
    destroys.join();
}

}  // namespace
}  // namespace stagehand::test
