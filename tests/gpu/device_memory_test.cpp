// The driver's free memory never shrinks by more than the budget while a model streams. The test measures the engine's
// own context before, with the memory that streams, programs, copies and registered host memory need there, and prints
// it.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <vector>

#include "gpu_test.h"
#include "pattern.h"

namespace stagehand::test {
namespace {

constexpr size_t kBlocks = 24;
constexpr double kMiB = 1 << 20;

class DeviceMemory : public testing::Test {
protected:
    void SetUp() override {
        try {
            cuda_.emplace();
        } catch (const std::exception& problem) {
            GTEST_SKIP() << problem.what();
        }
        memory_ = static_cast<char*>(std::aligned_alloc(4096, kBlocks * bytes_));
        write_pattern(memory_, kBlocks * bytes_ / 8, 1);
    }
    void TearDown() override {
        if (module_) cuda_->module_unload(module_);
        std::free(memory_);
    }

    uint64_t free_bytes() const {
        size_t free = 0, total = 0;
        EXPECT_EQ(cuda_->memory_info(&free, &total), CUDA_SUCCESS);
        return free;
    }
    uint64_t total_bytes() const {
        size_t free = 0, total = 0;
        EXPECT_EQ(cuda_->memory_info(&free, &total), CUDA_SUCCESS);
        return total;
    }

    // Makes everything that any engine has on a device: streams, a program, and copies in both directions.
    void set_up_context() {
        CUdeviceptr words = 0;
        CUfunction write = nullptr;
        CU(cuda_->module_load(&module_, kPatternProgram));
        CU(cuda_->module_function(&write, module_, "sh_test_write"));
        CU(cuda_->allocate(&words, bytes_));
        CU(cuda_->host_register(memory_, bytes_, 0));
        std::vector<CUstream> streams(8);
        for (CUstream& stream : streams) {
            CU(cuda_->stream_create(&stream, CU_STREAM_NON_BLOCKING));
            uint64_t address = words, count = 8, contents = 3;
            void* arguments[] = {&address, &count, &contents};
            CU(cuda_->launch_kernel(write, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
            CU(cuda_->copy_to_device(words, memory_, bytes_, stream));
            CU(cuda_->synchronize(stream));
        }
        CU(cuda_->copy_to_host(memory_, words, bytes_));
        for (const CUstream stream : streams) CU(cuda_->stream_destroy(stream));
        CU(cuda_->host_unregister(memory_));
        CU(cuda_->deallocate(words));
    }

    // Makes three steps over blocks of which every second block is pinned. Returns the driver's free memory before the
    // model took any of it, and the least free memory afterwards.
    void stream_model(uint64_t budget, uint64_t* free_before, uint64_t* least_free, sh_memory_info* info) {
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.page_bytes = page_bytes();
        options.budget_bytes = budget;
        sh_device* device = nullptr;
        sh_runtime* runtime = nullptr;
        sh_stream stream = SH_STREAM_HOST;
        OK(sh_device_open("cuda:0", &options, &device));
        OK(sh_runtime_create(device, nullptr, &runtime));
        OK(sh_stream_create(device, &stream));
        sh_block blocks[kBlocks] = {};
        for (size_t i = 0; i < kBlocks; i++) {
            sh_segment segment = SH_SEGMENT_INIT;
            segment.kind = SH_SOURCE_POINTER;
            segment.pointer = memory_ + i * bytes_;
            segment.bytes = bytes_;
            sh_block_desc desc = SH_BLOCK_DESC_INIT;
            desc.flags = i % 2 ? SH_BLOCK_PIN : 0;
            desc.bytes = bytes_;
            desc.segments = &segment;
            desc.segment_count = 1;
            OK(sh_register_blocks(runtime, &desc, 1, &blocks[i]));
        }
        OK(sh_stream_launch(device, stream, nullptr, nullptr, 100'000));  // the library's program is loaded
        OK(sh_stream_synchronize(device, stream));
        OK(sh_device_get_memory(device, info));
        ASSERT_EQ(info->used_bytes, 0u);
        *free_before = free_bytes();
        *least_free = UINT64_MAX;
        for (int k = 0; k < 3; k++) {
            OK(sh_step_begin(runtime, nullptr));
            for (const sh_block block : blocks) {
                auto view = sh_sized<sh_view>();
                OK(sh_acquire(runtime, block, stream, 0, &view));
                OK(sh_stream_launch(device, stream, nullptr, nullptr, 100'000));
                OK(sh_release(runtime, block, stream));
                *least_free = std::min(*least_free, free_bytes());
            }
            OK(sh_step_end(runtime));
        }
        OK(sh_stream_synchronize(device, stream));
        *least_free = std::min(*least_free, free_bytes());
        OK(sh_device_get_memory(device, info));
        sh_runtime_destroy(runtime);
        sh_stream_destroy(device, stream);
        sh_device_close(device);
    }

    const uint64_t bytes_ = 12 * page_bytes();
    std::optional<Cuda> cuda_;
    CUmodule module_ = nullptr;
    char* memory_ = nullptr;
};

TEST_F(DeviceMemory, stays_within_the_budget) {
    const uint64_t context = total_bytes() - free_bytes();
    set_up_context();
    ASSERT_FALSE(HasFatalFailure());
    const uint64_t before = free_bytes();
    std::printf(
        "in use before the library: %.1f MiB, the context and whoever else is there; with streams, a program and "
        "copies %.1f MiB\n",
        static_cast<double>(context) / kMiB, static_cast<double>(total_bytes() - before) / kMiB);
    for (const uint64_t percent : {20, 50, 90, 200}) {
        SCOPED_TRACE(percent);
        const uint64_t budget = kBlocks * bytes_ / 100 * percent;
        uint64_t free_before = 0, least_free = 0;
        auto info = sh_sized<sh_memory_info>();
        stream_model(budget, &free_before, &least_free, &info);
        ASSERT_FALSE(HasFatalFailure());
        const uint64_t used = free_before - std::min(free_before, least_free);
        std::printf(
            "budget %.1f MiB, %3u %% of the model: the driver has %.1f MiB less, the library says %.1f MiB; streams, "
            "program and registered "
            "memory took %.1f MiB before\n",
            static_cast<double>(budget) / kMiB, static_cast<unsigned>(percent), static_cast<double>(used) / kMiB,
            static_cast<double>(info.peak_bytes) / kMiB,
            static_cast<double>(before - std::min(before, free_before)) / kMiB);
        EXPECT_LE(used, budget);
        EXPECT_LE(info.peak_bytes, budget);
        EXPECT_GE(used, info.peak_bytes / 2);  // else the driver's figure is not what it is taken for
    }
}

}  // namespace
}  // namespace stagehand::test
