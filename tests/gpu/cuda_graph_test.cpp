// Captured steps on a GPU: the bytes that launches load, the state of the memory when they begin, and the work that
// they wait for.
#include <atomic>
#include <thread>

#include "graph_fixture.h"

namespace stagehand::test {
namespace {

TEST_F(CudaGraphs, launches_bring_the_model_whatever_came_before) {
    capture();
    if (HasFatalFailure()) return;
    for (int k = 0; k < 10 && !HasFatalFailure(); k++) {
        SCOPED_TRACE(k);
        launch(k % 3 ? stream_ : other_);
        expect_all_seen(k % 3 ? stream_ : other_);
        if (k % 2) {
            step(other_);
            expect_all_seen(other_);
        }
        const size_t i = static_cast<size_t>(k) % kBlocks;
        OK(sh_source_update_begin(runtime_, &blocks_[i], 1));
        EXPECT_EQ(sh_graph_enter(graph_, stream_), SH_ERROR_INVALID_STATE);
        set(i, static_cast<uint8_t>(100 + k));
        OK(sh_source_update_end(runtime_, &blocks_[i], 1));
        if (k % 4 == 2) {
            OK(sh_invalidate_blocks(runtime_, blocks_, kBlocks));
        }
    }
}

// A launch fills the ring without the library's knowledge. A later view must not count earlier contents as present.
TEST_F(CudaGraphs, views_after_a_launch_show_their_own_bytes) {
    capture();
    for (size_t first = 0; first < kBlocks && !HasFatalFailure(); first++) {
        SCOPED_TRACE(first);
        use(first, other_);  // loads the block, whatever the launch has put into its pages
        launch(stream_);
        for (size_t n = 0; n < kBlocks && !HasFatalFailure(); n++) use((first + n) % kBlocks, other_, 0);
        expect_all_seen(other_);
    }
}

// A launch would break the context if the graph's memory was mapped anew.
TEST_F(CudaGraphs, a_changed_plan_is_refused_and_captured_anew) {
    capture();
    launch(stream_);
    OK(sh_device_set_budget(device_, kBlocks * bytes_ / 2));
    EXPECT_EQ(sh_plan(runtime_, nullptr, nullptr), SH_ERROR_INVALID_STATE);
    sh_plan_options options = SH_PLAN_OPTIONS_INIT;
    options.flags = SH_PLAN_DROP_GRAPHS;
    OK(sh_plan(runtime_, &options, nullptr));
    EXPECT_EQ(sh_graph_enter(graph_, stream_), SH_ERROR_STALE);
    drop_graph();
    capture();
    launch(stream_);
    expect_all_seen(stream_);
}

// Inside a step, the library records the event of a use only when something has to wait for the use. A new load of
// resident contents has to wait. A wait for an event that was not recorded since would be no wait at all.
TEST_F(CudaGraphs, resident_contents_are_loaded_anew_after_uses_whose_events_nobody_recorded) {
    uint64_t resident = 0;
    for (size_t i = 0; i < kBlocks && !HasFatalFailure(); i++) {
        SCOPED_TRACE(i);
        auto state = sh_sized<sh_block_state>();
        OK(sh_block_get_state(runtime_, blocks_[i], &state));
        resident += state.resident_bytes;
        // Nothing else is loaded meanwhile. A copy that waits for the use of streamed pages would delay the other
        // copies.
        std::vector<sh_block> others(blocks_, blocks_ + kBlocks);
        others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
        const uint8_t before = expected_[i];
        OK(sh_step_begin(runtime_, nullptr));
        use(i, other_, 0);  // the runtime knows the stream from here on
        OK(sh_source_update_begin(runtime_, others.data(), others.size()));
        use(i, kElsewhere, other_, 20'000'000);  // the use is late
        OK(sh_source_update_begin(runtime_, &blocks_[i], 1));
        set(i, static_cast<uint8_t>(100 + i));
        OK(sh_source_update_end(runtime_, &blocks_[i], 1));
        use(i, stream_, 0);
        OK(sh_source_update_end(runtime_, others.data(), others.size()));
        OK(sh_step_end(runtime_));
        OK(sh_stream_synchronize(device_, other_));
        OK(sh_stream_synchronize(device_, stream_));
        expect_seen(kElsewhere, before);
        expect_seen(i);
    }
    EXPECT_GT(resident, 0u);
}

// Each copy inside a graph waits for the last uses, on both streams, of all pages that it writes. The step skips some
// blocks now and then, so the contents of a page do not always follow the order.
TEST_F(CudaGraphs, copies_in_a_graph_wait_for_uses_on_all_streams) {
    CUevent fork = nullptr;
    CU(cuda_->event_create(&fork, CU_EVENT_DISABLE_TIMING));
    for (size_t k = 0; k < 6 && !HasFatalFailure(); k++) {
        SCOPED_TRACE(k);
        begin_capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        CU(cuda_->event_record(fork, native(stream_)));
        CU(cuda_->wait_event(native(other_), fork, 0));
        std::vector<size_t> used;
        for (size_t i = 0; i < kBlocks && !HasFatalFailure(); i++) {
            if (k && (i + k) % 5 == 0) continue;
            const bool late = (i + k) % 2;
            use(i, late ? other_ : stream_, late ? 4'000'000 : 0);
            if (late && i % 4 == 1) use(i, kElsewhere, stream_, 0);  // the later use ends first
            used.push_back(i);
        }
        CU(cuda_->event_record(fork, native(other_)));
        CU(cuda_->wait_event(native(stream_), fork, 0));
        end_capture();
        for (int n = 0; n < 2 && !HasFatalFailure(); n++) {
            CU(cuda_->fill(seen_, 0xee, kBlocks * kSample * 3, native(stream_)));
            launch(stream_);
            OK(sh_stream_synchronize(device_, stream_));
            for (const size_t i : used) expect_seen(i);
        }
        drop_graph();
    }
    CU(cuda_->event_destroy(fork));
}

// The engine's changes reach the source before a launch or a load takes the pages.
TEST_F(CudaGraphs, what_was_changed_is_written_back_before_its_pages_are_filled_anew) {
    begin_capture();
    for (size_t i = 0; i < kMutable && !HasFatalFailure(); i++) use(i, stream_);
    end_capture();
    for (int k = 0; k < 6 && !HasFatalFailure(); k++) {
        SCOPED_TRACE(k);
        const auto value = static_cast<uint8_t>(200 + k);
        auto view = sh_sized<sh_view>();
        OK(sh_acquire(runtime_, blocks_[kMutable], other_, 0, &view));
        OK(sh_mark_dirty(runtime_, blocks_[kMutable]));
        OK(sh_stream_launch(device_, other_, nullptr, nullptr, 5'000'000));
        CU(cuda_->fill(reinterpret_cast<CUdeviceptr>(view.address), value, bytes_, native(other_)));
        OK(sh_release(runtime_, blocks_[kMutable], other_));
        expected_[kMutable] = value;
        if (k % 2) {
            launch(stream_);
        } else {
            for (size_t i = 0; i < kMutable && !HasFatalFailure(); i++) use(i, stream_, 0);
        }
        use(kMutable, other_, 0);
        OK(sh_stream_synchronize(device_, other_));
        expect_all_seen(stream_);
        OK(sh_write_back(runtime_, nullptr, 0));
        const auto* const source = static_cast<const uint8_t*>(at(kMutable));
        for (uint64_t b = 0; b < bytes_; b += 511) ASSERT_EQ(source[b], value) << b;
    }
}

// A late kernel sees the right bytes, although the next block needs its pages. The next block uses other addresses, so
// a running kernel would not even see the change through its own address.
TEST_F(CudaGraphs, pages_of_a_kernel_in_flight_are_not_filled) {
    for (int k = 0; k < 3 && !HasFatalFailure(); k++) {
        OK(sh_step_begin(runtime_, nullptr));
        for (size_t i = 0; i < kBlocks && !HasFatalFailure(); i++)
            use(i, i % 2 ? stream_ : other_, i % 2 ? 8'000'000 : 0);
        OK(sh_step_end(runtime_));
        OK(sh_stream_synchronize(device_, other_));
        expect_all_seen(stream_);
    }
}

// An on_load callback may queue such a function.
TEST_F(CudaGraphs, a_function_of_the_host_in_a_capture_runs_with_each_launch) {
    std::atomic<int> calls{0};
    begin_capture();
    use(0, stream_);
    OK(sh_stream_launch(
        device_, stream_, [](void* data) { ++*static_cast<std::atomic<int>*>(data); }, &calls, 0));
    end_capture();
    EXPECT_EQ(calls, 0);
    for (int k = 1; k <= 5 && !HasFatalFailure(); k++) {
        launch(stream_);
        OK(sh_stream_synchronize(device_, stream_));
        EXPECT_EQ(calls, k);
    }
}

}  // namespace
}  // namespace stagehand::test
