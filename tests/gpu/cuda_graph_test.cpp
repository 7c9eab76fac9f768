// Captured steps on a GPU: the engine copies what each view shows to a place of its own, in the graph, and looks at it after the
// launch. Skips where there is no CUDA device.
#include <cstring>
#include <memory>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include <stagehand/stagehand.h>

#include "cuda_driver.h"

namespace stagehand::test {
namespace {

std::string why() {
    char text[1024] = "";
    sh_last_error(text, sizeof text);
    return text;
}
#define OK(call) ASSERT_EQ((call), SH_OK) << why()
#define CU(call) ASSERT_EQ((call), CUDA_SUCCESS)

constexpr size_t kBlocks = 12;
constexpr uint64_t kBytes = uint64_t(24) << 20;

class CudaGraphs : public testing::Test {
protected:
    void SetUp() override {
        try {
            cuda_.emplace();
        } catch (const std::exception& problem) {
            GTEST_SKIP() << problem.what();
        }
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.budget_bytes = kBlocks * kBytes / 3;
        OK(sh_device_open("cuda:0", &options, &device_));
        uint32_t pinned = 0;
        OK(sh_host_alloc(device_, kBlocks * kBytes, &host_, &pinned));
        ASSERT_TRUE(pinned);
        for (size_t i = 0; i < kBlocks; i++) set(i, static_cast<uint8_t>(i));
        sh_runtime_options half = SH_RUNTIME_OPTIONS_INIT;   // so that another runtime has room beside it
        half.max_bytes = kBlocks * kBytes / 2;
        OK(sh_runtime_create(device_, &half, &runtime_));
        std::vector<sh_use> uses;
        for (size_t i = 0; i < kBlocks; i++) {
            sh_segment segment = SH_SEGMENT_INIT;
            segment.kind = SH_SOURCE_POINTER;
            segment.pointer = at(i);
            segment.bytes = kBytes;
            sh_block_desc desc = SH_BLOCK_DESC_INIT;
            desc.bytes = kBytes;
            desc.segments = &segment;
            desc.segment_count = 1;
            OK(sh_register_blocks(runtime_, &desc, 1, &blocks_[i]));
            sh_use use = SH_USE_INIT;
            use.block = blocks_[i];
            use.compute_ns = 300'000;
            uses.push_back(use);
        }
        OK(sh_set_schedule(runtime_, uses.data(), uses.size()));
        OK(sh_plan(runtime_, nullptr, nullptr));
        OK(sh_stream_create(device_, &stream_));
        OK(sh_stream_create(device_, &other_));
        CU(cuda_->allocate(&seen_, kBlocks * kSample * 3));
    }
    void TearDown() override {
        if (!device_) return;
        sh_graph_destroy(graph_);
        sh_runtime_destroy(runtime_);
        if (instance_) cuda_->destroy_instance(instance_);
        if (seen_) cuda_->deallocate(seen_);
        if (host_) sh_host_free(device_, host_);
        sh_stream_destroy(device_, stream_);
        sh_stream_destroy(device_, other_);
        sh_device_close(device_);
    }

    static constexpr uint64_t kSample = 4096;   // at the beginning, in the middle and at the end of each view

    void* at(size_t i) const { return static_cast<char*>(host_) + i * kBytes; }
    void set(size_t i, uint8_t value) {
        std::memset(at(i), value, kBytes);
        expected_[i] = value;
    }
    CUstream native(sh_stream stream) const { return reinterpret_cast<CUstream>(stream); }

    void use(size_t i, sh_stream stream) {
        sh_view view = SH_VIEW_INIT;
        OK(sh_acquire(runtime_, blocks_[i], stream, 0, &view));
        OK(sh_stream_launch(device_, stream, nullptr, nullptr, 300'000));
        const auto address = reinterpret_cast<CUdeviceptr>(view.address);
        for (uint64_t k = 0; k < 3; k++)
            CU(cuda_->copy_on_device(seen_ + (i * 3 + k) * kSample, address + k * (kBytes - kSample) / 2, kSample, native(stream)));
        OK(sh_release(runtime_, blocks_[i], stream));
    }
    void step(sh_stream stream) {
        OK(sh_step_begin(runtime_));
        for (size_t i = 0; i < kBlocks; i++) use(i, stream);
        OK(sh_step_end(runtime_));
    }
    void capture() {
        CUgraph graph = nullptr;
        CU(cuda_->begin_capture(native(stream_), CU_STREAM_CAPTURE_MODE_GLOBAL));
        OK(sh_capture_begin(runtime_, stream_));
        for (size_t i = 0; i < kBlocks; i++) use(i, stream_);
        OK(sh_capture_end(runtime_, stream_, &graph_));
        CU(cuda_->end_capture(native(stream_), &graph));
        CU(cuda_->instantiate(&instance_, graph, 0));
        CU(cuda_->destroy(graph));
    }
    void launch(sh_stream stream) {
        OK(sh_graph_enter(graph_, stream));
        CU(cuda_->launch(instance_, native(stream)));
        OK(sh_graph_leave(graph_, stream));
    }
    void expect_seen(sh_stream stream) {
        OK(sh_stream_synchronize(device_, stream));
        std::vector<uint8_t> bytes(kBlocks * kSample * 3);
        CU(cuda_->copy_to_host(bytes.data(), seen_, bytes.size()));
        for (size_t i = 0; i < kBlocks; i++)
            for (uint64_t b = 0; b < 3 * kSample; b++) ASSERT_EQ(bytes[i * 3 * kSample + b], expected_[i]) << "block " << i << ", byte " << b;
    }

    std::optional<Cuda> cuda_;
    sh_device* device_ = nullptr;
    sh_runtime* runtime_ = nullptr;
    void* host_ = nullptr;
    sh_block blocks_[kBlocks] = {};
    uint8_t expected_[kBlocks] = {};
    sh_stream stream_ = SH_STREAM_HOST, other_ = SH_STREAM_HOST;
    CUdeviceptr seen_ = 0;
    sh_graph* graph_ = nullptr;
    CUgraphExec instance_ = nullptr;
};

TEST_F(CudaGraphs, launches_bring_the_model_whatever_came_before) {
    capture();
    if (HasFatalFailure()) return;
    for (int k = 0; k < 10 && !HasFatalFailure(); k++) {
        SCOPED_TRACE(k);
        launch(k % 3 ? stream_ : other_);
        expect_seen(k % 3 ? stream_ : other_);
        if (k % 2) {
            step(other_);
            expect_seen(other_);
        }
        const size_t i = static_cast<size_t>(k) % kBlocks;
        OK(sh_source_update_begin(runtime_, &blocks_[i], 1));
        EXPECT_EQ(sh_graph_enter(graph_, stream_), SH_ERROR_BUSY);
        set(i, static_cast<uint8_t>(100 + k));
        OK(sh_source_update_end(runtime_, &blocks_[i], 1));
        if (k % 4 == 2) {
            OK(sh_invalidate_blocks(runtime_, blocks_, kBlocks));
        }
    }
}

TEST_F(CudaGraphs, a_changed_plan_is_refused_and_captured_anew) {
    capture();
    launch(stream_);
    OK(sh_device_set_budget(device_, kBlocks * kBytes / 2));
    EXPECT_EQ(sh_plan(runtime_, nullptr, nullptr), SH_ERROR_BUSY);
    sh_plan_options options = SH_PLAN_OPTIONS_INIT;
    options.flags = SH_PLAN_DROP_GRAPHS;
    OK(sh_plan(runtime_, &options, nullptr));
    EXPECT_EQ(sh_graph_enter(graph_, stream_), SH_ERROR_STALE);
    sh_graph_destroy(graph_);
    graph_ = nullptr;
    cuda_->destroy_instance(instance_);
    instance_ = nullptr;
    capture();
    launch(stream_);
    expect_seen(stream_);
}

// The library's threads and calls on other threads must not invalidate a capture, in the strictest mode there is.
TEST_F(CudaGraphs, eager_steps_of_another_runtime_do_not_disturb_a_capture) {
    std::vector<uint8_t> memory(uint64_t(64) << 20, 7);
    sh_runtime* eager = nullptr;
    sh_block block = 0;
    OK(sh_device_set_budget(device_, kBlocks * kBytes));
    OK(sh_runtime_create(device_, nullptr, &eager));
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_POINTER;
    segment.pointer = memory.data();
    segment.bytes = memory.size();
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    desc.bytes = memory.size();
    desc.segments = &segment;
    desc.segment_count = 1;
    OK(sh_register_blocks(eager, &desc, 1, &block));
    std::atomic<bool> done{false};
    std::thread worker([&] {
        while (!done) {
            sh_view view = SH_VIEW_INIT;
            EXPECT_EQ(sh_invalidate_blocks(eager, &block, 1), SH_OK) << why();
            EXPECT_EQ(sh_acquire(eager, block, other_, 0, &view), SH_OK) << why();
            EXPECT_EQ(sh_release(eager, block, other_), SH_OK) << why();
            EXPECT_EQ(sh_runtime_synchronize(eager), SH_OK) << why();
        }
    });
    for (int k = 0; k < 20 && !HasFatalFailure(); k++) {
        (void)sh_plan(runtime_, nullptr, nullptr);
        capture();
        launch(stream_);
        expect_seen(stream_);
        sh_graph_destroy(graph_);
        graph_ = nullptr;
        cuda_->destroy_instance(instance_);
        instance_ = nullptr;
    }
    done = true;
    worker.join();
    sh_runtime_destroy(eager);
}

}  // namespace
}  // namespace stagehand::test
