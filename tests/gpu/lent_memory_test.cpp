// Device memory that the engine has allocated, and that the library uses in place of the driver's.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "gpu_test.h"

namespace stagehand::test {
namespace {

class LentMemory : public testing::Test {
protected:
    static constexpr size_t kBlocks = 10;
    static constexpr uint64_t kPage = uint64_t(2) << 20;  // without pages, memory comes in no smaller pieces

    void SetUp() override {
        try {
            cuda_ = std::make_unique<Cuda>();
        } catch (const std::exception& problem) {
            GTEST_SKIP() << problem.what();
        }
        CU(cuda_->allocate(&lent_, kLent));
        CU(cuda_->fill(lent_, 0xee, kLent, nullptr));
        CU(cuda_->synchronize(nullptr));
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.page_bytes = kPage;
        options.budget_bytes = 12 * kPage;
        options.device_memory = reinterpret_cast<void*>(lent_);
        options.device_memory_bytes = kLent;
        OK(sh_device_open("cuda:0", &options, &device_));
        OK(sh_runtime_create(device_, nullptr, &runtime_));
    }
    void TearDown() override {
        sh_runtime_destroy(runtime_);
        sh_device_close(device_);
        if (lent_) {
            CU(cuda_->deallocate(lent_));
        }
    }

    static constexpr uint64_t kLent = 16 * kPage;
    std::unique_ptr<Cuda> cuda_;
    CUdeviceptr lent_ = 0;
    sh_device* device_ = nullptr;
    sh_runtime* runtime_ = nullptr;
};

TEST_F(LentMemory, holds_all_blocks) {
    const uint64_t bytes = 5 * kPage / 2;
    void* memory = nullptr;
    OK(sh_host_alloc(device_, kBlocks * bytes, &memory, nullptr));
    auto* const begin = static_cast<uint8_t*>(memory);
    for (uint64_t i = 0; i < kBlocks * bytes; i++) begin[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
    std::vector<sh_block> blocks(kBlocks);
    for (size_t i = 0; i < kBlocks; i++) {
        sh_segment segment = SH_SEGMENT_INIT;
        segment.kind = SH_SOURCE_POINTER;
        segment.pointer = begin + i * bytes;
        segment.bytes = bytes;
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        desc.bytes = bytes;
        desc.segments = &segment;
        desc.segment_count = 1;
        OK(sh_register_blocks(runtime_, &desc, 1, &blocks[i]));
    }
    std::vector<uint8_t> found(bytes);
    for (int step = 0; step < 3; step++) {
        OK(sh_step_begin(runtime_, nullptr));
        for (size_t i = 0; i < kBlocks; i++) {
            auto view = sh_sized<sh_view>();
            OK(sh_acquire(runtime_, blocks[i], SH_STREAM_HOST, 0, &view));
            const auto address = reinterpret_cast<uint64_t>(view.address);
            EXPECT_GE(address, lent_);
            EXPECT_LE(address + bytes, lent_ + kLent);
            OK(sh_read_block(runtime_, blocks[i], SH_STREAM_HOST, 0, found.data(), bytes));
            EXPECT_EQ(std::memcmp(found.data(), begin + i * bytes, bytes), 0);
            OK(sh_release(runtime_, blocks[i], SH_STREAM_HOST));
        }
        OK(sh_step_end(runtime_));
    }
    auto info = sh_sized<sh_memory_info>();
    OK(sh_device_get_memory(device_, &info));
    EXPECT_EQ(info.total_bytes, kLent);
    EXPECT_GT(info.used_bytes, 0u);
    EXPECT_LE(info.peak_bytes, 12 * kPage);
    OK(sh_unregister_blocks(runtime_, blocks.data(), blocks.size()));
    OK(sh_host_free(device_, memory));
}

TEST_F(LentMemory, has_an_end) {
    OK(sh_device_set_budget(device_, 100 * kPage));
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    desc.bytes = 20 * kPage;
    sh_block block = 0;
    auto view = sh_sized<sh_view>();
    OK(sh_register_blocks(runtime_, &desc, 1, &block));
    const sh_status status = sh_acquire(runtime_, block, SH_STREAM_HOST, 0, &view);
    EXPECT_TRUE(status == SH_ERROR_OUT_OF_DEVICE_MEMORY || status == SH_ERROR_BUDGET) << status << ": " << why();
}

}  // namespace
}  // namespace stagehand::test
