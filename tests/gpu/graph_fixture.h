// The fixture of the tests of captured steps on a GPU: a model of twelve blocks of twelve pages in pinned memory,
// larger than the budget. The engine copies the bytes of each view to a separate place and checks them later. The tests
// are skipped if there is no CUDA device.
#pragma once

#include <cstring>
#include <optional>
#include <vector>

#include "gpu_test.h"

namespace stagehand::test {

constexpr size_t kBlocks = 12;
constexpr size_t kElsewhere = kBlocks;    // a place for bytes that belong to no particular block
constexpr size_t kMutable = kBlocks - 1;  // the one that the engine may change
constexpr uint64_t kSample = 4096;        // at the beginning, in the middle and at the end of each view

class CudaGraphs : public testing::Test {
protected:
    void SetUp() override {
        try {
            cuda_.emplace();
        } catch (const std::exception& problem) {
            GTEST_SKIP() << problem.what();
        }
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.page_bytes = page_bytes();
        options.budget_bytes = kBlocks * bytes_ / 3;
        OK(sh_device_open("cuda:0", &options, &device_));
        uint32_t pinned = 0;
        OK(sh_host_alloc(device_, kBlocks * bytes_, &host_, &pinned));
        ASSERT_TRUE(pinned);
        for (size_t i = 0; i < kBlocks; i++) set(i, static_cast<uint8_t>(i));
        sh_runtime_options half = SH_RUNTIME_OPTIONS_INIT;  // so that another runtime has room beside it
        half.max_bytes = kBlocks * bytes_ / 2;
        OK(sh_runtime_create(device_, &half, &runtime_));
        std::vector<sh_use> uses;
        for (size_t i = 0; i < kBlocks; i++) {
            register_block(runtime_, at(i), bytes_, i == kMutable ? SH_BLOCK_MUTABLE : 0, &blocks_[i]);
            sh_use use = SH_USE_INIT;
            use.block = blocks_[i];
            use.compute_ns = 300'000;
            uses.push_back(use);
        }
        OK(sh_set_schedule(runtime_, uses.data(), uses.size()));
        OK(sh_plan(runtime_, nullptr, nullptr));
        OK(sh_stream_create(device_, &stream_));
        OK(sh_stream_create(device_, &other_));
        CU(cuda_->allocate(&seen_, (kBlocks + 1) * kSample * 3));
    }
    void TearDown() override {
        if (!device_) return;
        drop_graph();
        sh_runtime_destroy(runtime_);
        if (seen_) cuda_->deallocate(seen_);
        if (host_) sh_host_free(device_, host_);
        sh_stream_destroy(device_, stream_);
        sh_stream_destroy(device_, other_);
        sh_device_close(device_);
    }

    static void register_block(sh_runtime* runtime, void* memory, uint64_t bytes, uint32_t flags, sh_block* out) {
        sh_segment segment = SH_SEGMENT_INIT;
        segment.kind = SH_SOURCE_POINTER;
        segment.pointer = memory;
        segment.bytes = bytes;
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        desc.flags = flags;
        desc.bytes = bytes;
        desc.segments = &segment;
        desc.segment_count = 1;
        OK(sh_register_blocks(runtime, &desc, 1, out));
    }

    void* at(size_t i) const { return static_cast<char*>(host_) + i * bytes_; }
    void set(size_t i, uint8_t value) {
        std::memset(at(i), value, bytes_);
        expected_[i] = value;
    }
    static CUstream native(sh_stream stream) { return reinterpret_cast<CUstream>(stream); }

    // Keeps the stream busy for that long, and then copies from the view to the place.
    void look(size_t place, const sh_view& view, sh_stream stream, int64_t busy_ns) {
        if (busy_ns) {
            OK(sh_stream_launch(device_, stream, nullptr, nullptr, busy_ns));
        }
        const auto address = reinterpret_cast<CUdeviceptr>(view.address);
        for (uint64_t k = 0; k < 3; k++)
            CU(cuda_->copy_on_device(seen_ + (place * 3 + k) * kSample, address + k * (bytes_ - kSample) / 2, kSample,
                                     native(stream)));
    }
    void use(size_t i, sh_stream stream, int64_t busy_ns = 300'000) { use(i, i, stream, busy_ns); }
    void use(size_t i, size_t place, sh_stream stream, int64_t busy_ns) {
        auto view = sh_sized<sh_view>();
        OK(sh_acquire(runtime_, blocks_[i], stream, 0, &view));
        look(place, view, stream, busy_ns);
        OK(sh_release(runtime_, blocks_[i], stream));
    }
    void step(sh_stream stream) {
        OK(sh_step_begin(runtime_, nullptr));
        for (size_t i = 0; i < kBlocks; i++) use(i, stream);
        OK(sh_step_end(runtime_));
    }

    void begin_capture(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
        CU(cuda_->begin_capture(native(stream_), mode));
        OK(sh_capture_begin(runtime_, stream_));
    }
    void end_capture() {
        OK(sh_capture_end(runtime_, stream_, &graph_));
        CUgraph graph = nullptr;
        CU(cuda_->end_capture(native(stream_), &graph));
        count_copies(graph);
        CU(cuda_->instantiate(&instance_, graph, 0));
        CU(cuda_->destroy(graph));
    }
    void capture() {
        begin_capture();
        for (size_t i = 0; i < kBlocks && !HasFatalFailure(); i++) use(i, stream_);
        end_capture();
    }
    void count_copies(CUgraph graph) {
        size_t count = 0;
        CU(cuda_->graph_nodes(graph, nullptr, &count));
        std::vector<CUgraphNode> nodes(count);
        CU(cuda_->graph_nodes(graph, nodes.data(), &count));
        copies_ = 0;
        for (CUgraphNode node : nodes) {
            CUgraphNodeType type = {};
            CU(cuda_->node_type(node, &type));
            copies_ += type == CU_GRAPH_NODE_TYPE_MEMCPY;
        }
    }
    void drop_graph() {
        sh_graph_destroy(graph_);
        graph_ = nullptr;
        if (instance_) cuda_->destroy_instance(instance_);
        instance_ = nullptr;
    }
    void launch(sh_stream stream) {
        OK(sh_graph_enter(graph_, stream));
        CU(cuda_->launch(instance_, native(stream)));
        OK(sh_graph_leave(graph_, stream));
    }
    void expect_seen(size_t i) { expect_seen(i, expected_[i]); }
    void expect_seen(size_t place, uint8_t value) {
        std::vector<uint8_t> bytes(kSample * 3);
        CU(cuda_->copy_to_host(bytes.data(), seen_ + place * bytes.size(), bytes.size()));
        for (uint64_t b = 0; b < bytes.size(); b++) ASSERT_EQ(bytes[b], value) << "place " << place << ", byte " << b;
    }
    void expect_all_seen(sh_stream stream) {
        OK(sh_stream_synchronize(device_, stream));
        for (size_t i = 0; i < kBlocks && !HasFatalFailure(); i++) expect_seen(i);
    }

    const uint64_t bytes_ = 12 * page_bytes();
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
    size_t copies_ = 0;  // nodes of the last graph that copy
};

}  // namespace stagehand::test
