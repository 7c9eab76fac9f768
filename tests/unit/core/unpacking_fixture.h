// A runtime with packed tensors of several sources, on a device that unpacks.
#pragma once

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "../codec/weights.h"
#include "codec/frame.h"
#include "engine.h"

namespace stagehand::test {

using codec::FloatFormat;

inline constexpr uint64_t kLeast = 4 << 20;  // of the memory to unpack in
// GPUs have larger pages, and the memory to unpack in must not be more than a quarter of the budget.
inline const uint64_t kDeviceMiB = (1 << 20) * (on_host_backend() ? 1 : 2), kBudget = 36 * kDeviceMiB;

struct PackedTensor {
    std::vector<uint8_t> contents, frame;
    std::shared_ptr<std::FILE> file;

    // The frame in a file, which is written when it is first needed.
    int descriptor() {
        if (!file) {
            file.reset(std::tmpfile(), [](std::FILE* opened) { (void)std::fclose(opened); });
            EXPECT_EQ(std::fwrite(frame.data(), 1, frame.size(), file.get()), frame.size());
            EXPECT_EQ(std::fflush(file.get()), 0);
        }
        return fileno(file.get());
    }
};

// With staging buffers that a chunk fits into.
inline const DeviceSettings kDevice = {.options = "capacity=256MiB;staging_piece=1280KiB;poison=1",
                                       .budget_bytes = kBudget,
                                       .page_bytes = 64 << 10,
                                       .link_bytes_per_second = 1'000'000,
                                       .staging_bytes = 16 << 20};

class UnpackingTest : public ::testing::Test {
protected:
    explicit UnpackingTest(const DeviceSettings& device = kDevice) : device_(device) {}
    void SetUp() override {
        if (device_under_test() == "sim") GTEST_SKIP() << "this device has no contents";
        if (kOneThreadOnly) GTEST_SKIP() << "ThreadSanitizer sees the same in matrix-loads";
        runtime_ = new_runtime();
    }
    void TearDown() override {
        sh_runtime_destroy(runtime_);
        for (void* memory : pinned_) {
            EXPECT_SUCCEEDS(sh_host_free(device_.get(), memory));
        }
    }

    // Waits for its share while another runtime holds it. Two of them have equal shares.
    sh_runtime* new_runtime() {
        sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
        options.share_wait_ns = 60'000'000'000;
        options.max_bytes = kBudget;
        sh_runtime* runtime = nullptr;
        EXPECT_GE(sh_runtime_create(device_.get(), &options, &runtime), 0) << why();
        return runtime;
    }

    static std::vector<uint8_t> weights(FloatFormat format, uint64_t elements, uint8_t seed) {
        return codec::test::repeated_weights(format, elements, seed);
    }

    // Made once for all tests.
    PackedTensor& packed(FloatFormat format, uint64_t elements) {
        static std::map<std::tuple<FloatFormat, uint64_t, size_t>, PackedTensor> all;
        PackedTensor& made = all[{format, elements, tensors_.size()}];
        tensors_.push_back(&made);
        if (!made.frame.empty()) return made;
        made.contents = weights(format, elements, static_cast<uint8_t>(tensors_.size()));
        EXPECT_TRUE(codec::pack_frame(format, made.contents.data(), made.contents.size(), 2, &made.frame).ok());
        return made;
    }

    // A copy in pinned memory. SH_BLOCK_PIN may fail where tensors share pages of memory.
    void* pinned(const std::vector<uint8_t>& bytes) {
        void*& memory = pinned_.emplace_back();
        EXPECT_SUCCEEDS(sh_host_alloc(device_.get(), bytes.size(), &memory, nullptr));
        return memory ? std::memcpy(memory, bytes.data(), bytes.size()) : nullptr;
    }

    // A block of packed tensors, which begin at any even offset. Those in files if `kind_` says so.
    void add_block(sh_runtime* runtime, uint32_t flags,
                   std::initializer_list<std::pair<FloatFormat, uint64_t>> tensors) {
        std::vector<sh_segment> segments;
        std::vector<uint8_t>& truth = truth_.emplace_back();
        for (const auto& [format, elements] : tensors) {
            PackedTensor& tensor = packed(format, elements);
            sh_segment& segment = segments.emplace_back(sh_segment(SH_SEGMENT_INIT));
            segment.kind = kind_;
            segment.pointer = pins_itself_ ? pinned(tensor.frame) : tensor.frame.data();
            if (kind_ == SH_SOURCE_FILE) segment.file = tensor.descriptor();
            segment.packed_bytes = tensor.frame.size();
            segment.bytes = tensor.contents.size();
            segment.offset = truth.size();
            truth.insert(truth.end(), tensor.contents.begin(), tensor.contents.end());
        }
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        desc.segments = segments.data();
        desc.segment_count = segments.size();
        desc.bytes = truth.size();
        desc.flags = flags;
        SUCCEEDS(sh_register_blocks(runtime, &desc, 1, &blocks_.emplace_back()));
    }
    // 54 MiB in blocks whose chunks lie across the borders of pages. One block has several formats.
    void add_model(sh_runtime* runtime, uint32_t flags = SH_BLOCK_PIN) {
        for (int i = 0; i < 8; i++)
            add_block(runtime, flags, {{FloatFormat::bf16, 3 * kDeviceMiB + 7}, {FloatFormat::bf16, 1000}});
        add_block(runtime, flags,
                  {{FloatFormat::f32, kDeviceMiB}, {FloatFormat::f16, kDeviceMiB + 1}, {FloatFormat::f8_e5m2, 9999}});
    }
    // Each use computes for so long.
    void set_schedule(uint64_t compute_ns = 1) {
        std::vector<sh_use> uses;
        for (const sh_block block : blocks_) {
            sh_use& use = uses.emplace_back(sh_use(SH_USE_INIT));
            use.block = block;
            use.compute_ns = compute_ns;
        }
        SUCCEEDS(sh_set_schedule(runtime_, uses.data(), uses.size()));
    }
    void step(sh_runtime* runtime) {
        SUCCEEDS(sh_step_begin(runtime, nullptr));
        for (size_t i = 0; i < blocks_.size(); i++) expect_bytes(runtime, blocks_[i], truth_[i]);
        SUCCEEDS(sh_step_end(runtime));
    }
    static void expect_bytes(sh_runtime* runtime, sh_block block, const std::vector<uint8_t>& wanted) {
        auto view = sh_sized<sh_view>();
        std::vector<uint8_t> found(wanted.size());
        view = held_view(runtime, block);
        SUCCEEDS(sh_read_block(runtime, block, SH_STREAM_HOST, 0, found.data(), found.size()));
        EXPECT_TRUE(found == wanted);
        let_go(runtime, block);
    }
    // Of a dry run. 0: the link's own speed.
    sh_plan_info plan(uint64_t link_bytes_per_second = 0) {
        sh_plan_options dry = SH_PLAN_OPTIONS_INIT;
        dry.flags = SH_PLAN_DRY_RUN;
        dry.link_bytes_per_second = link_bytes_per_second;
        auto plan = sh_sized<sh_plan_info>();
        EXPECT_SUCCEEDS(sh_plan(runtime_, &dry, &plan));
        return plan;
    }
    void pause_and_resume() {
        sh_pause_options all = SH_PAUSE_OPTIONS_INIT;
        SUCCEEDS(sh_pause(device_.get(), &all, nullptr));
        EXPECT_EQ(device_.memory().used_bytes, 0u);
        sh_resume_options back = SH_RESUME_OPTIONS_INIT;
        SUCCEEDS(sh_resume(device_.get(), &back, nullptr));
    }
    // Memory that the runtime holds beside its blocks: what the device unpacks in.
    static uint64_t beside(sh_runtime* runtime) {
        const sh_runtime_stats now = stats(runtime);
        return now.held_bytes - now.resident_bytes - now.ring_bytes - now.unordered_bytes;
    }
    static sh_runtime_stats stats(sh_runtime* runtime) {
        auto stats = sh_sized<sh_runtime_stats>();
        EXPECT_GE(sh_runtime_get_stats(runtime, &stats), 0);
        return stats;
    }

    std::vector<PackedTensor*> tensors_;
    uint32_t kind_ = SH_SOURCE_POINTER;
    bool pins_itself_ = false;
    std::vector<void*> pinned_;
    std::vector<std::vector<uint8_t>> truth_;
    TestDevice device_;
    sh_runtime* runtime_ = nullptr;
    std::vector<sh_block> blocks_;
};

}  // namespace stagehand::test
