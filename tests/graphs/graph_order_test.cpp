// Captured steps beside other work: what launches and the copies inside them wait for, what they leave behind, and what
// must stay out of them.
#include <atomic>
#include <chrono>
#include <thread>

#include "captured_step.h"

namespace stagehand::test {
namespace {

TEST_F(Graphs, a_launch_comes_after_what_other_streams_still_do) {
    // A block that streams does so as a whole, so that a launch loads all bytes of other contents.
    SoloModel model(settings(34), equal_blocks(6, 6 * kPage, Origin::pinned, SH_BLOCK_WHOLE), forward(6));
    model.plan();
    const sh_stream stream = model.stream(), other = model.stream();
    std::vector<size_t> streamed;
    for (size_t i = 0; i < 6; i++)
        if (model.state(i).streamed_bytes) streamed.push_back(i);
    ASSERT_GT(streamed.size(), 1u);
    Step step(model, stream, {streamed[0]});
    // Nothing else is brought meanwhile, so that no copy of another block's waits for the same uses and holds the
    // launch up.
    std::vector<sh_block> others;
    for (const size_t i : streamed)
        if (i != streamed[0]) others.push_back(model.id(i));
    for (uint64_t version = 1; version < 6; version++) {
        // The bytes of the view are compared late, and the launch loads other contents.
        sh_view view = model.acquire(streamed[0], other);
        SUCCEEDS(sh_runtime_synchronize(model.runtime()));
        SUCCEEDS(sh_source_update_begin(model.runtime(), others.data(), others.size()));
        SUCCEEDS(sh_stream_launch(model.device(), other, nullptr, nullptr, 10'000'000));
        SUCCEEDS(model.compare(streamed[0], view, other));
        model.release(streamed[0], other);
        model.change(streamed[0], version);
        SUCCEEDS(step.launch(stream));
        model.synchronize();
        SUCCEEDS(sh_source_update_end(model.runtime(), others.data(), others.size()));
    }
}

int32_t overwrite(const sh_loaded_range* range, void* device) {
    struct Range {
        void* address;
        uint64_t bytes;
    };
    const auto write = [](void* data) {
        const auto* const at = static_cast<const Range*>(data);  // the graph may be launched again
        std::memset(at->address, 1, at->bytes);
    };
    static Range at;
    at = {range->address, range->bytes};
    return sh_stream_launch(static_cast<sh_device*>(device), range->stream, write, &at, 0) == SH_OK ? 0 : -1;
}

// The library copies nothing to the second block, but its callback writes to it. These writes still come after the uses
// of the earlier contents.
TEST_F(Graphs, a_callback_inside_a_graph_writes_after_earlier_uses) {
    SoloModel model(settings(8), equal_blocks(1, 6 * kPage, Origin::pinned));
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    desc.bytes = 6 * kPage;
    desc.flags = SH_BLOCK_WHOLE;
    desc.on_load = overwrite;
    desc.user_data = model.device();
    sh_block written = 0;
    SUCCEEDS(sh_register_blocks(model.runtime(), &desc, 1, &written));
    std::vector<sh_use> order(2, SH_USE_INIT);
    order[0].block = model.id(0);
    order[1].block = written;
    SUCCEEDS(sh_set_schedule(model.runtime(), order.data(), order.size()));
    model.plan();
    ASSERT_GT(model.state(0).streamed_bytes, 0u);
    const sh_stream stream = model.stream();
    Step step(model);
    SUCCEEDS(step.begin(stream));
    SUCCEEDS(step.use(0, stream, 5'000'000));
    held_view(model.runtime(), written, stream);
    let_go(model.runtime(), written, stream);
    SUCCEEDS(step.end());
    for (int k = 0; k < 3; k++) SUCCEEDS(step.launch(stream));
    model.synchronize();
    EXPECT_EQ(step.compared(), 3u);
}

// Inside a step, the library records the event of a use only when something has to wait for the use. A new load of
// resident contents has to wait. A wait for an event that was not recorded since would be no wait at all.
TEST_F(Graphs, resident_contents_are_loaded_anew_after_uses_whose_events_nobody_recorded) {
    SoloModel model(settings(20), equal_blocks(6, 6 * kPage, Origin::pinned), forward(6));
    Step step(model, forward(6));
    const sh_stream stream = step.stream(), other = model.stream();
    uint64_t residents = 0;
    for (size_t i = 0; i < 6; i++) {
        residents += model.state(i).resident_bytes > 0;
        for (const uint64_t version : {1, 2}) {
            model.begin_step();
            SUCCEEDS(model.use(i, other));  // the runtime knows the stream from here on
            sh_view view = model.acquire(i, other);
            SUCCEEDS(sh_stream_launch(model.device(), other, nullptr, nullptr, 10'000'000));
            SUCCEEDS(model.compare(i, view, other));  // with what it holds now
            model.release(i, other);
            const sh_block id = model.id(i);
            SUCCEEDS(sh_source_update_begin(model.runtime(), &id, 1));
            model.change(i, version);
            SUCCEEDS(sh_source_update_end(model.runtime(), &id, 1));
            if (version == 1) {
                SUCCEEDS(step.launch());
            } else {
                SUCCEEDS(model.use(i, stream));
            }
            model.end_step();
            model.synchronize();
        }
    }
    EXPECT_GT(residents, 0u);
}

// Workers load what stays on the device. Nothing on the device stands for their loads before they have issued them.
TEST_F(Graphs, a_launch_waits_for_workers) {
    SoloModel model(settings(64), equal_blocks(6, 6 * kPage, Origin::pageable), forward(6));
    Step step(model, forward(6));
    for (const uint64_t version : {1, 2, 3}) {
        SUCCEEDS(sh_source_update_begin(model.runtime(), model.ids().data(), 6));
        for (size_t i = 0; i < 6; i++) model.change(i, version);
        SUCCEEDS(sh_source_update_end(model.runtime(), model.ids().data(), 6));
        SUCCEEDS(step.launch());
        model.synchronize();
    }
    EXPECT_EQ(step.compared(), 18u);
}

// One copy writes to the pages of many blocks. Each block was used on one of two streams or on both. The uses that
// began last are not those that end last.
TEST_F(Graphs, a_copy_over_many_blocks_waits_for_all_their_uses) {
    constexpr size_t kSmall = 7;
    std::vector<BlockSpec> specs = equal_blocks(kSmall, 2 * kPage, Origin::pinned);  // not packed into one
    for (int n = 0; n < 2; n++) specs.push_back({14 * kPage, Origin::pinned});
    SoloModel model(settings(17), specs, forward(kSmall + 2));
    model.plan();
    ASSERT_GT(model.state(kSmall).streamed_bytes, 8 * kPage);
    const sh_stream stream = model.stream(), other = model.stream();
    Step step(model);
    ASSERT_EQ(step.begin(stream), SH_OK) << why();
    SUCCEEDS(DRIVER(sh_test_follow)(other, stream));
    for (size_t i = 0; i < kSmall; i++) {
        SUCCEEDS(step.use(i, other, 1'000'000));
        if (i % 2) {
            SUCCEEDS(step.use(i, stream));
        }
    }
    for (int n = 0; n < 2; n++) SUCCEEDS(step.use(kSmall + static_cast<size_t>(n)));
    SUCCEEDS(DRIVER(sh_test_follow)(stream, other));
    ASSERT_EQ(step.end(), SH_OK) << why();
    for (int k = 0; k < 3; k++) {
        SUCCEEDS(step.launch(stream));
        model.synchronize();
        model.begin_step();
        for (size_t i = 0; i < kSmall; i++) {
            SUCCEEDS(sh_stream_launch(model.device(), other, nullptr, nullptr, 1'000'000));
            SUCCEEDS(model.use(i, other));
            if (i % 2) {
                SUCCEEDS(model.use(i, stream));
            }
        }
        for (int n = 0; n < 2; n++) SUCCEEDS(model.use(kSmall + static_cast<size_t>(n), stream));
        model.end_step();
        model.synchronize();
    }
}

TEST_F(Graphs, what_the_engine_changed_is_written_back_before_a_launch) {
    constexpr size_t kFixed = 3, kChanged = 16;
    for (const Origin origin : {Origin::pinned, Origin::pageable}) {
        std::vector<BlockSpec> specs = equal_blocks(kFixed, 6 * kPage, Origin::pinned);
        for (size_t n = 0; n < kChanged; n++) specs.push_back({2 * kPage, origin, SH_BLOCK_MUTABLE});
        SoloModel model(settings(18, ";jitter_us=500;jitter_seed=7"), specs, forward(kFixed + kChanged));
        model.plan();
        uint64_t streamed = 0;
        for (size_t i = kFixed; i < kFixed + kChanged; i++) streamed += model.state(i).streamed_bytes;
        ASSERT_GT(streamed, 16 * kPage);
        const sh_stream stream = model.stream(), other = model.stream();
        Step step(model, stream, {1, 2});
        for (uint64_t version = 1; version < 8; version++) {
            // Nothing is brought after the last of them, so that no copy of the library's waits for the same
            // write-backs and holds the launch up.
            const sh_block next = model.id(0);
            SUCCEEDS(sh_source_update_begin(model.runtime(), &next, 1));
            // So that all write-backs begin together, and the last ones late.
            SUCCEEDS(sh_stream_launch(model.device(), stream, nullptr, nullptr, 5'000'000));
            for (size_t i = kFixed; i < kFixed + kChanged; i++) model.rewrite(i, version, stream);
            SUCCEEDS(step.launch(other));
            SUCCEEDS(sh_source_update_end(model.runtime(), &next, 1));
            for (size_t i = kFixed; i < kFixed + kChanged; i++)
                SUCCEEDS(model.use(i, stream));  // what it did itself there, it orders itself
            SUCCEEDS(sh_write_back(model.runtime(), nullptr, 0));
            for (size_t i = kFixed; i < kFixed + kChanged; i++) EXPECT_EQ(model.source(i).read(), *model.truth(i)) << i;
        }
    }
}

// Steps of another runtime on another thread, and the library's own threads, do nothing that would disturb a capture.
TEST_F(Graphs, captures_and_eager_steps_of_others_do_not_meet) {
    const RuntimeSettings half{.max_bytes = 40 * kPage};  // so that neither asks the other for memory
    SoloModel captured(settings(80), equal_blocks(10, 6 * kPage, Origin::pinned), forward(10), half);
    captured.plan();
    Model eager(captured.test_device(), unequal_blocks(10, Origin::pageable), half);
    const sh_stream stream = captured.stream(), other = captured.stream();
    std::atomic<bool> done{false};
    std::thread worker([&] {
        while (!done) EXPECT_SUCCEEDS(eager.step(forward(10), other));
    });
    for (int k = 0; k < 10; k++) {
        Step step(captured);
        step.capture(stream, forward(10));
        for (int n = 0; n < 3; n++) EXPECT_EQ(step.launch(stream), SH_OK) << why();
        EXPECT_SUCCEEDS(sh_stream_synchronize(captured.device(), stream));
        EXPECT_EQ(step.compared(), 30u);
    }
    done = true;
    worker.join();
}

}  // namespace
}  // namespace stagehand::test
