// Calls that drivers forbid during a capture. The tests show that drivers forbid them, and that the library makes none
// of them.
#include <atomic>
#include <functional>
#include <thread>

#include "graph_fixture.h"

namespace stagehand::test {
namespace {

class CaptureRules : public CudaGraphs {
protected:
    void SetUp() override {
        CudaGraphs::SetUp();
        if (IsSkipped() || HasFatalFailure()) return;
        CU(cuda_->event_create(&event_, CU_EVENT_DISABLE_TIMING));
        memory_ = static_cast<uint8_t*>(std::aligned_alloc(4096, kMemory));
        ASSERT_NE(memory_, nullptr);
        std::memset(memory_, 7, kMemory);
    }
    void TearDown() override {
        sh_runtime_destroy(pageable_);
        if (event_) cuda_->event_destroy(event_);
        CudaGraphs::TearDown();
        std::free(memory_);
    }

    // Makes a capture by the driver alone, without the library. Returns the status of its end.
    CUresult capture_alone(CUstreamCaptureMode mode, const std::function<void()>& inside) {
        CUgraph graph = nullptr;
        EXPECT_EQ(cuda_->begin_capture(native(stream_), mode), CUDA_SUCCESS);
        inside();
        const CUresult result = cuda_->end_capture(native(stream_), &graph);
        if (result == CUDA_SUCCESS) {
            count_copies(graph);
            EXPECT_EQ(cuda_->destroy(graph), CUDA_SUCCESS);
        }
        return result;
    }
    void on_another_thread(const std::function<void()>& work) const {
        std::thread([&] {
            EXPECT_EQ(cuda_->set_current(cuda_->context), CUDA_SUCCESS);
            work();
        }).join();
    }

    // Opens another runtime with a pageable source of 8 MiB. Its loads pass through the library's threads.
    void open_pageable() {
        OK(sh_device_set_budget(device_, kBlocks * bytes_ + 2 * kMemory));
        OK(sh_runtime_create(device_, nullptr, &pageable_));
        register_block(pageable_, memory_, kMemory, 0, &block_);
        load_pageable(other_);
        OK(sh_plan(runtime_, nullptr, nullptr));  // the shares have changed
    }
    void load_pageable(sh_stream stream) const {
        auto view = sh_sized<sh_view>();
        EXPECT_EQ(sh_invalidate_blocks(pageable_, &block_, 1), SH_OK) << why();
        EXPECT_EQ(sh_acquire(pageable_, block_, stream, 0, &view), SH_OK) << why();
        EXPECT_EQ(sh_release(pageable_, block_, stream), SH_OK) << why();
    }

    CUevent event_ = nullptr;
    static constexpr uint64_t kMemory = uint64_t(8) << 20;
    uint8_t* memory_ = nullptr;
    sh_runtime* pageable_ = nullptr;
    sh_block block_ = 0;
};

TEST_F(CaptureRules, the_driver_refuses_to_wait_for_what_came_before) {
    CU(cuda_->event_record(event_, native(other_)));
    EXPECT_NE(
        capture_alone(
            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            [&] { EXPECT_EQ(cuda_->wait_event(native(stream_), event_, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION); }),
        CUDA_SUCCESS);
}

TEST_F(CaptureRules, the_driver_refuses_work_that_is_not_joined) {
    EXPECT_EQ(capture_alone(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                            [&] {
                                CU(cuda_->event_record(event_, native(stream_)));
                                CU(cuda_->wait_event(native(other_), event_, 0));
                                CU(cuda_->copy_to_device(seen_, host_, kSample, native(other_)));
                            }),
              CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
}

TEST_F(CaptureRules, the_driver_takes_in_whatever_is_queued_on_a_stream_that_joined) {
    const CUresult result = capture_alone(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, [&] {
        CU(cuda_->event_record(event_, native(stream_)));
        CU(cuda_->wait_event(native(other_), event_, 0));
        on_another_thread(
            [&] { CU(cuda_->copy_to_device(seen_, host_, kSample, native(other_))); });  // nothing to do with it
        CU(cuda_->event_record(event_, native(other_)));
        CU(cuda_->wait_event(native(stream_), event_, 0));
    });
    EXPECT_EQ(result, CUDA_SUCCESS);
    EXPECT_EQ(copies_, 1u);
}

// Calls on any thread invalidate a capture in the global mode, unless the calling thread has the relaxed mode.
TEST_F(CaptureRules, the_driver_forbids_other_threads_what_could_reach_into_a_capture) {
    CU(cuda_->event_record(event_, native(other_)));
    OK(sh_stream_synchronize(device_, other_));
    CUdeviceptr memory = 0;
    const std::pair<const char*, std::function<CUresult()>> calls[] = {
        {"asking an event", [&] { return cuda_->event_query(event_); }},
        {"waiting for an event", [&] { return cuda_->event_synchronize(event_); }},
        {"waiting for a stream", [&] { return cuda_->synchronize(native(other_)); }},
        {"allocating", [&] { return cuda_->allocate(&memory, kSample); }},
        {"registering host memory", [&] { return cuda_->host_register(memory_, kMemory, 0); }},
    };
    for (const auto& [name, call] : calls) {
        SCOPED_TRACE(name);
        const auto made = [&, &call = call](bool relaxed) {
            return capture_alone(CU_STREAM_CAPTURE_MODE_GLOBAL, [&] {
                on_another_thread([&] {
                    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
                    if (relaxed) {
                        CU(cuda_->exchange_capture_mode(&mode));
                    }
                    const CUresult result = call();
                    EXPECT_EQ(result == CUDA_SUCCESS, relaxed) << result;
                });
            });
        };
        EXPECT_EQ(made(false), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        EXPECT_EQ(made(true), CUDA_SUCCESS);
    }
    CU(cuda_->deallocate(memory));
    CU(cuda_->host_unregister(memory_));
}

// Each of these library calls uses a driver call that is forbidden in a capture. Both this thread and another have the
// strictest mode here.
TEST_F(CaptureRules, calls_of_the_library_leave_captures_on_other_threads_alone) {
    open_pageable();
    const std::pair<const char*, std::function<void()>> calls[] = {
        {"all that a runtime does is waited for", [&] { OK(sh_runtime_synchronize(pageable_)); }},
        {"a stream is waited for", [&] { OK(sh_stream_synchronize(device_, other_)); }},
        {"a load is waited for",
         [&] {
             load_pageable(SH_STREAM_HOST);
             load_pageable(other_);
         }},
        {"a view is polled",
         [&] {
             auto view = sh_sized<sh_view>();
             sh_status status = SH_OK;
             EXPECT_EQ(sh_invalidate_blocks(pageable_, &block_, 1), SH_OK) << why();
             while ((status = sh_acquire(pageable_, block_, SH_STREAM_HOST, SH_ACQUIRE_NO_WAIT, &view)) ==
                    SH_NOT_READY) {
             }
             ASSERT_EQ(status, SH_OK) << why();
             OK(sh_release(pageable_, block_, SH_STREAM_HOST));
         }},
        {"host memory is pinned and given back",
         [&] {
             void* more = nullptr;
             OK(sh_host_alloc(device_, kMemory, &more, nullptr));
             OK(sh_host_free(device_, more));
         }},
        {"a runtime comes and goes",
         [&] {
             sh_runtime_options small = SH_RUNTIME_OPTIONS_INIT;
             small.max_bytes = kMemory;
             sh_runtime* more = nullptr;
             sh_block block = 0;
             auto view = sh_sized<sh_view>();
             OK(sh_runtime_create(device_, &small, &more));
             register_block(more, memory_, kMemory, SH_BLOCK_PIN, &block);
             OK(sh_acquire(more, block, other_, 0, &view));
             OK(sh_release(more, block, other_));
             sh_runtime_destroy(more);
         }},
        {"the device is asked how it is",
         [&] {
             auto info = sh_sized<sh_memory_info>();
             OK(sh_device_get_memory(device_, &info));
         }},
    };
    for (const auto& [name, call] : calls) {
        SCOPED_TRACE(name);
        begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
        for (size_t i = 0; i < kBlocks && !HasFatalFailure(); i++) {
            if (i == kBlocks / 2) on_another_thread(call);
            use(i, stream_);
        }
        end_capture();
        ASSERT_FALSE(HasFatalFailure());
        launch(stream_);
        expect_all_seen(stream_);
        drop_graph();
    }
}

// This also tests the library's own threads: a load of 8 MiB is under way nearly all the time.
TEST_F(CaptureRules, steps_of_another_runtime_do_not_disturb_a_capture) {
    open_pageable();
    std::atomic<bool> done{false};
    std::atomic<int> rounds{0};
    std::thread worker([&] {
        for (; !done; rounds++) {
            load_pageable(other_);
            EXPECT_EQ(sh_runtime_synchronize(pageable_), SH_OK) << why();
        }
    });
    for (int k = 0; k < 20 && !HasFatalFailure(); k++) {
        capture();
        launch(stream_);
        expect_all_seen(stream_);
        drop_graph();
    }
    done = true;
    worker.join();
    EXPECT_GT(rounds, 0);
}

// Loads, write-backs and uses that are under way when the capture begins do not become part of it, and the capture does
// not wait for them.
TEST_F(CaptureRules, a_graph_holds_nothing_of_what_was_under_way) {
    open_pageable();
    OK(sh_runtime_synchronize(pageable_));
    capture();
    const size_t quiet = copies_;
    ASSERT_GT(quiet, 3 * kBlocks);  // the engine's own copies, and loads
    drop_graph();
    for (int k = 0; k < 5 && !HasFatalFailure(); k++) {
        OK(sh_invalidate_blocks(runtime_, blocks_, kBlocks));
        step(other_);  // the first blocks of the next step are being loaded at its end
        OK(sh_prefetch(runtime_, blocks_, kBlocks));
        OK(sh_invalidate_blocks(pageable_, &block_, 1));
        OK(sh_prefetch(pageable_, &block_, 1));
        capture();
        ASSERT_FALSE(HasFatalFailure());
        EXPECT_EQ(copies_, quiet);
        OK(sh_stream_synchronize(device_, other_));
        launch(stream_);
        expect_all_seen(stream_);
        drop_graph();
    }
}

}  // namespace
}  // namespace stagehand::test
