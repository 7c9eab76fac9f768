// Default streams of threads: one handle means another stream on each thread. All rules for two streams must also hold
// for the streams of two threads.
#include "graph_fixture.h"
#include "worker.h"

namespace stagehand::test {
namespace {

const sh_stream kOwn = reinterpret_cast<sh_stream>(CU_STREAM_PER_THREAD);

class ThreadStreams : public CudaGraphs {
protected:
    void SetUp() override {
        CudaGraphs::SetUp();
        if (IsSkipped() || HasFatalFailure()) return;
        for (auto* worker : {&first_, &second_})
            worker->emplace([this] { EXPECT_EQ(cuda_->set_current(cuda_->context), CUDA_SUCCESS); });
    }
    void TearDown() override {
        first_.reset();
        second_.reset();
        CudaGraphs::TearDown();
    }
    void wait_for(std::optional<Worker>& worker) {
        worker->run([&] { OK(sh_stream_synchronize(device_, kOwn)); });
    }

    std::optional<Worker> first_, second_;
};

// The bytes arrive late, after a use of the memory that they go to. The second thread's use is early.
TEST_F(ThreadStreams, bytes_that_one_thread_waits_for_are_not_there_for_another) {
    uint64_t streamed = 0;
    for (size_t i = 0; i < kBlocks && !HasFatalFailure(); i++) {
        SCOPED_TRACE(i);
        const size_t before = (i + kBlocks / 2) % kBlocks;
        OK(sh_step_begin(runtime_, nullptr));
        for (size_t n = 0; n < kBlocks; n++) {
            if (n != i) use(n, other_, n == before ? 20'000'000 : 0);
        }
        auto stats = sh_sized<sh_runtime_stats>();
        OK(sh_runtime_get_stats(runtime_, &stats));
        streamed -= stats.bytes_to_device;
        first_->run([&] { use(i, kElsewhere, kOwn, 0); });
        second_->run([&] { use(i, i, kOwn, 0); });
        OK(sh_runtime_get_stats(runtime_, &stats));
        streamed += stats.bytes_to_device;
        OK(sh_step_end(runtime_));
        wait_for(first_);
        wait_for(second_);
        expect_seen(kElsewhere, expected_[i]);
        expect_all_seen(other_);
    }
    EXPECT_GT(streamed, 0u);
}

// The first thread looks late. The memory must not be reused when the second thread has looked, although that thread
// released the block later.
TEST_F(ThreadStreams, memory_waits_for_the_uses_of_every_thread) {
    for (size_t i = 0; i < kBlocks && !HasFatalFailure(); i++) {
        SCOPED_TRACE(i);
        auto late = sh_sized<sh_view>(), soon = sh_sized<sh_view>();
        OK(sh_step_begin(runtime_, nullptr));
        first_->run([&] {
            OK(sh_acquire(runtime_, blocks_[i], kOwn, 0, &late));
            look(kElsewhere, late, kOwn, 20'000'000);
        });
        second_->run([&] {
            OK(sh_acquire(runtime_, blocks_[i], kOwn, 0, &soon));
            look(i, soon, kOwn, 0);
        });
        for (auto* worker : {&first_, &second_}) (*worker)->run([&] { OK(sh_release(runtime_, blocks_[i], kOwn)); });
        for (size_t n = 1; n < kBlocks; n++) use((i + n) % kBlocks, stream_, 0);
        OK(sh_step_end(runtime_));
        wait_for(first_);
        wait_for(second_);
        expect_seen(kElsewhere, expected_[i]);
        expect_all_seen(stream_);
    }
}

// The engine's change is late in the stream of a thread, which the thread that asks for the write-back cannot name. The
// block is streamed first, and stays on the device later.
TEST_F(ThreadStreams, a_write_back_waits_for_the_changes_of_every_thread) {
    for (int k = 0; k < 3 && !HasFatalFailure(); k++) {
        SCOPED_TRACE(k);
        if (k == 1) {
            OK(sh_protect_blocks(runtime_, &blocks_[kMutable], 1, nullptr));
        }
        const auto value = static_cast<uint8_t>(200 + k);
        first_->run([&] {
            auto view = sh_sized<sh_view>();
            OK(sh_acquire(runtime_, blocks_[kMutable], kOwn, 0, &view));
            OK(sh_mark_dirty(runtime_, blocks_[kMutable]));
            OK(sh_stream_launch(device_, kOwn, nullptr, nullptr, 20'000'000));
            CU(cuda_->fill(reinterpret_cast<CUdeviceptr>(view.address), value, bytes_, CU_STREAM_PER_THREAD));
            OK(sh_release(runtime_, blocks_[kMutable], kOwn));
        });
        OK(sh_write_back(runtime_, &blocks_[kMutable], 1));
        const auto* const source = static_cast<const uint8_t*>(at(kMutable));
        for (uint64_t b = 0; b < bytes_; b += 511) ASSERT_EQ(source[b], value) << b;
        wait_for(first_);
    }
}

// The library knows the uses of a thread that has ended, because no other thread could ask its stream.
TEST_F(ThreadStreams, threads_may_end_within_a_step) {
    OK(sh_step_begin(runtime_, nullptr));
    for (size_t i = 0; i < kBlocks; i++) first_->run([&] { use(i, kOwn, 1'000'000); });
    first_.reset();
    OK(sh_step_end(runtime_));
    OK(sh_invalidate_blocks(runtime_, blocks_, kBlocks));
    OK(sh_device_set_budget(device_, kBlocks * bytes_ / 2));  // memory is mapped anew
    OK(sh_plan(runtime_, nullptr, nullptr));
    step(stream_);
    expect_all_seen(stream_);
    second_->run([&] { OK(sh_stream_forget(runtime_, kOwn)); });
}

// More threads than a runtime remembers streams.
TEST_F(ThreadStreams, of_a_hundred_threads) {
    for (size_t n = 0; n < 100 && !HasFatalFailure(); n++) {
        second_.emplace([this] { EXPECT_EQ(cuda_->set_current(cuda_->context), CUDA_SUCCESS); });
        second_->run([&] { use(n % kBlocks, kOwn, 0); });
        if (n % kBlocks == kBlocks - 1) step(kOwn);
    }
    expect_all_seen(kOwn);
}

// A thread cannot name the default stream of another thread, because the handle means its own stream.
TEST_F(ThreadStreams, captures_and_launches_belong_to_their_thread) {
    first_->run([&] {
        CU(cuda_->begin_capture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        OK(sh_capture_begin(runtime_, kOwn));
    });
    EXPECT_EQ(sh_capture_end(runtime_, kOwn, &graph_), SH_ERROR_INVALID_STATE);
    first_->run([&] {
        for (size_t i = 0; i < kBlocks; i++) use(i, kOwn);
        OK(sh_capture_end(runtime_, kOwn, &graph_));
        CUgraph graph = nullptr;
        CU(cuda_->end_capture(CU_STREAM_PER_THREAD, &graph));
        CU(cuda_->instantiate(&instance_, graph, 0));
        CU(cuda_->destroy(graph));
        launch(kOwn);
        expect_all_seen(kOwn);
        OK(sh_graph_enter(graph_, kOwn));
        CU(cuda_->launch(instance_, CU_STREAM_PER_THREAD));
    });
    if (HasFatalFailure()) return;
    EXPECT_EQ(sh_graph_leave(graph_, kOwn), SH_ERROR_INVALID_STATE);
    // The graph is destroyed on a thread that did not enter it, and the call waits for the launch.
    sh_graph_destroy(graph_);
    graph_ = nullptr;
    for (size_t i = 0; i < kBlocks && !HasFatalFailure(); i++) expect_seen(i);
    OK(sh_plan(runtime_, nullptr, nullptr));
    step(other_);
    expect_all_seen(other_);
}

}  // namespace
}  // namespace stagehand::test
