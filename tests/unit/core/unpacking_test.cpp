// Packed tensors that cross the link packed: the device unpacks them.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <thread>
#include <tuple>
#include <vector>

#include "../codec/weights.h"
#include "codec/frame.h"
#include "engine.h"

namespace stagehand::test {
namespace {

using codec::FloatFormat;

constexpr uint64_t kLeast = 4 << 20;  // of the memory to unpack in
// GPUs have larger pages, and the memory to unpack in must not be more than an eighth of the budget.
const uint64_t kMiB = (1 << 20) * (on_host_backend() ? 1 : 2), kBudget = 36 * kMiB;

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
const DeviceSettings kDevice = {.options = "capacity=256MiB;staging_piece=1280KiB;poison=1",
                                .budget_bytes = kBudget,
                                .page_bytes = 64 << 10,
                                .link_bytes_per_second = 1'000'000,
                                .staging_bytes = 16 << 20};

class UnpackingTest : public ::testing::Test {
protected:
    explicit UnpackingTest(const DeviceSettings& device = kDevice) : device_(device) {}
    void SetUp() override {
        if (device_under_test() == "sim") GTEST_SKIP() << "this device has no contents";
        if (kOneThreadOnly) GTEST_SKIP() << "ThreadSanitizer sees the same in stress-unpack";
        runtime_ = new_runtime();
    }
    void TearDown() override { sh_runtime_destroy(runtime_); }

    // Waits for its share while another runtime holds it. Two of them have equal shares.
    sh_runtime* new_runtime() {
        sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
        options.share_wait_ns = 60'000'000'000;
        options.max_bytes = kBudget;
        sh_runtime* runtime = nullptr;
        EXPECT_GE(sh_runtime_create(device_.get(), &options, &runtime), 0) << why();
        return runtime;
    }

    // Weights that repeat, with other mantissas for each tensor. Many random weights would take long.
    static std::vector<uint8_t> weights(FloatFormat format, uint64_t elements, uint8_t seed) {
        const uint32_t size = codec::fields_of(format).bytes();
        const std::vector<uint8_t> some = codec::test::weights(format, 50'001, 1);
        std::vector<uint8_t> all(elements * size);
        for (size_t i = 0; i < all.size(); i++)
            all[i] = static_cast<uint8_t>(some[i % some.size()] ^ (i % size ? 0 : seed));
        return all;
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

    // A block of packed tensors, which begin at any even offset. Those in files if `kind_` says so.
    void add_block(sh_runtime* runtime, uint32_t flags,
                   std::initializer_list<std::pair<FloatFormat, uint64_t>> tensors) {
        std::vector<sh_segment> segments;
        std::vector<uint8_t>& truth = truth_.emplace_back();
        for (const auto& [format, elements] : tensors) {
            PackedTensor& tensor = packed(format, elements);
            sh_segment& segment = segments.emplace_back(sh_segment(SH_SEGMENT_INIT));
            segment.kind = kind_;
            segment.pointer = tensor.frame.data();
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
            add_block(runtime, flags, {{FloatFormat::bf16, 3 * kMiB + 7}, {FloatFormat::bf16, 1000}});
        add_block(runtime, flags,
                  {{FloatFormat::f32, kMiB}, {FloatFormat::f16, kMiB + 1}, {FloatFormat::f8_e5m2, 9999}});
    }
    void set_schedule() {
        std::vector<sh_use> uses;
        for (const sh_block block : blocks_) {
            sh_use& use = uses.emplace_back(sh_use(SH_USE_INIT));
            use.block = block;
            use.compute_ns = 1;
        }
        SUCCEEDS(sh_set_schedule(runtime_, uses.data(), uses.size()));
    }
    void step(sh_runtime* runtime) {
        SUCCEEDS(sh_step_begin(runtime));
        for (size_t i = 0; i < blocks_.size(); i++) expect_bytes(runtime, blocks_[i], truth_[i]);
        SUCCEEDS(sh_step_end(runtime));
    }
    static void expect_bytes(sh_runtime* runtime, sh_block block, const std::vector<uint8_t>& wanted) {
        sh_view view = SH_VIEW_INIT;
        std::vector<uint8_t> found(wanted.size());
        SUCCEEDS(sh_acquire(runtime, block, SH_STREAM_HOST, 0, &view));
        SUCCEEDS(sh_read_block(runtime, block, SH_STREAM_HOST, 0, found.data(), found.size()));
        EXPECT_TRUE(found == wanted);
        SUCCEEDS(sh_release(runtime, block, SH_STREAM_HOST));
    }
    // Memory that the runtime holds beside its blocks: what the device unpacks in.
    static uint64_t beside(sh_runtime* runtime) {
        const sh_runtime_stats now = stats(runtime);
        return now.held_bytes - now.resident_bytes - now.ring_bytes - now.unordered_bytes;
    }
    static sh_runtime_stats stats(sh_runtime* runtime) {
        sh_runtime_stats stats = SH_RUNTIME_STATS_INIT;
        EXPECT_GE(sh_runtime_get_stats(runtime, &stats), 0);
        return stats;
    }

    std::vector<PackedTensor*> tensors_;
    uint32_t kind_ = SH_SOURCE_POINTER;
    std::vector<std::vector<uint8_t>> truth_;
    TestDevice device_;
    sh_runtime* runtime_ = nullptr;
    std::vector<sh_block> blocks_;
};

TEST_F(UnpackingTest, TheLinkCarriesPackedBytes) {
    for (int i = 0; i < 3; i++) add_block(runtime_, SH_BLOCK_PIN, {{FloatFormat::bf16, 9 * kMiB + 7}});
    for (int i = 0; i < 3; i++) step(runtime_);
    EXPECT_GE(beside(runtime_), kLeast);
    EXPECT_LE(beside(runtime_), kBudget / 8);
    sh_plan_options dry = SH_PLAN_OPTIONS_INIT;
    dry.flags = SH_PLAN_DRY_RUN;
    sh_plan_info plan = SH_PLAN_INFO_INIT;
    SUCCEEDS(sh_plan(runtime_, &dry, &plan));
    const uint64_t before = stats(runtime_).bytes_to_device;
    for (int i = 0; i < 5; i++) step(runtime_);
    const double part =
        static_cast<double>(stats(runtime_).bytes_to_device - before) / static_cast<double>(5 * plan.bytes_per_step);
    EXPECT_GT(part, 0.65);  // 0.70, and chunks at the edges of what is streamed are brought whole
    EXPECT_LT(part, 0.95);
    EXPECT_LE(device_.memory().peak_bytes, kBudget);
}

// Workers read files and unpinned memory into the staging buffers, as they are.
TEST_F(UnpackingTest, TheLinkCarriesPackedBytesFromAnySource) {
    add_block(runtime_, 0, {{FloatFormat::bf16, 9 * kMiB + 7}, {FloatFormat::f8_e4m3, 9999}});
    kind_ = SH_SOURCE_FILE;
    add_block(runtime_, 0, {{FloatFormat::bf16, 9 * kMiB + 8}, {FloatFormat::f32, kMiB / 2}});
    kind_ = SH_SOURCE_MAPPED;
    add_block(runtime_, 0, {{FloatFormat::bf16, 9 * kMiB + 9}});
    for (int i = 0; i < 3; i++) step(runtime_);
    EXPECT_GE(beside(runtime_), kLeast);
    sh_plan_options dry = SH_PLAN_OPTIONS_INIT;
    dry.flags = SH_PLAN_DRY_RUN;
    sh_plan_info plan = SH_PLAN_INFO_INIT;
    SUCCEEDS(sh_plan(runtime_, &dry, &plan));
    const uint64_t before = stats(runtime_).bytes_to_device;
    for (int i = 0; i < 3; i++) step(runtime_);
    const double part =
        static_cast<double>(stats(runtime_).bytes_to_device - before) / static_cast<double>(3 * plan.bytes_per_step);
    EXPECT_GT(part, 0.65);
    EXPECT_LT(part, 0.98);
    EXPECT_LE(device_.memory().peak_bytes, kBudget);
}

class SmallStagingBuffers : public UnpackingTest {
protected:
    SmallStagingBuffers() : UnpackingTest(settings()) {}
    static DeviceSettings settings() {
        DeviceSettings small = kDevice;
        small.staging_bytes = 512 << 10;
        return small;
    }
};

TEST_F(SmallStagingBuffers, WorkersUnpackIfNoChunkFits) {
    add_model(runtime_, 0);
    for (int i = 0; i < 3; i++) step(runtime_);
    EXPECT_EQ(beside(runtime_), 0u);
}

// Workers compare checksums in the first load of a chunk. A load that found damage was not the first.
TEST_F(UnpackingTest, DamageInAFileIsNamed) {
    kind_ = SH_SOURCE_FILE;
    add_model(runtime_, 0);
    set_schedule();
    const PackedTensor& tensor = *tensors_[0];
    const auto write_last = [&](uint8_t byte) {
        EXPECT_EQ(std::fseek(tensor.file.get(), static_cast<long>(tensor.frame.size() - 1), SEEK_SET), 0);
        EXPECT_EQ(std::fputc(byte, tensor.file.get()), byte);
        EXPECT_EQ(std::fflush(tensor.file.get()), 0);
    };
    write_last(tensor.frame.back() ^ 1);
    SUCCEEDS(sh_step_begin(runtime_));
    EXPECT_GE(beside(runtime_), kLeast);
    sh_view view = SH_VIEW_INIT;
    EXPECT_EQ(sh_acquire(runtime_, blocks_[0], SH_STREAM_HOST, 0, &view), SH_ERROR_SOURCE);
    EXPECT_NE(why().find("checksum"), std::string::npos) << why();
    SUCCEEDS(sh_step_end(runtime_));
    write_last(tensor.frame.back());
    step(runtime_);
}

TEST_F(UnpackingTest, AModelThatFitsNeedsNoMemoryToUnpackIn) {
    add_block(runtime_, SH_BLOCK_PIN, {{FloatFormat::bf16, 4 * kMiB}});
    for (int i = 0; i < 3; i++) step(runtime_);
    EXPECT_EQ(device_.memory().used_bytes, 8 * kMiB);
}

TEST_F(UnpackingTest, ThePlanCountsPackedBytes) {
    add_model(runtime_);
    set_schedule();
    step(runtime_);
    sh_plan_options dry = SH_PLAN_OPTIONS_INIT;
    dry.flags = SH_PLAN_DRY_RUN;
    dry.link_bytes_per_second = 1'000'000;  // so slow that neither computing nor unpacking counts
    sh_plan_info plan = SH_PLAN_INFO_INIT;
    SUCCEEDS(sh_plan(runtime_, &dry, &plan));
    const double ratio = static_cast<double>(plan.step_ns) / (static_cast<double>(plan.bytes_per_step) * 1000);
    EXPECT_GT(ratio, 0.65);
    EXPECT_LT(ratio, 0.80);
    EXPECT_LE(plan.bound_ns, plan.step_ns);
    EXPECT_GT(plan.bound_ns, plan.step_ns / 2);
}

TEST_F(UnpackingTest, MemoryToUnpackInIsGivenBack) {
    add_model(runtime_);
    for (int i = 0; i < 2; i++) step(runtime_);
    SUCCEEDS(sh_trim(runtime_, 0, nullptr));
    EXPECT_EQ(device_.memory().used_bytes, 0u);
    step(runtime_);
    EXPECT_GE(beside(runtime_), kLeast);
    if (!devices_without_pages()) {
        sh_pause_options all = SH_PAUSE_OPTIONS_INIT;
        SUCCEEDS(sh_pause(device_.get(), &all, nullptr));
        EXPECT_EQ(device_.memory().used_bytes, 0u);
        sh_resume_options back = SH_RESUME_OPTIONS_INIT;
        SUCCEEDS(sh_resume(device_.get(), &back, nullptr));
        step(runtime_);
        EXPECT_GE(beside(runtime_), kLeast);
    }
    SUCCEEDS(sh_unregister_blocks(runtime_, blocks_.data(), blocks_.size()));
    sh_runtime_destroy(runtime_);
    runtime_ = nullptr;
    EXPECT_EQ(device_.memory().used_bytes, 0u);
}

// The memory is not worth a refusal: with less than eight times its size, the workers unpack.
TEST_F(UnpackingTest, ASmallBudgetIsForWeights) {
    SUCCEEDS(sh_device_set_budget(device_.get(), 30 << 20));
    add_model(runtime_);
    for (int i = 0; i < 2; i++) step(runtime_);
    EXPECT_EQ(beside(runtime_), 0u);
    SUCCEEDS(sh_device_set_budget(device_.get(), kBudget));
    SUCCEEDS(sh_plan(runtime_, nullptr, nullptr));
    step(runtime_);
    EXPECT_GE(beside(runtime_), kLeast);
}

// Each runtime unpacks in memory of its own share, on a stream of its own.
TEST_F(UnpackingTest, RuntimesUnpackAtTheSameTime) {
    SUCCEEDS(sh_device_set_budget(device_.get(), 2 * kBudget));
    add_model(runtime_);
    sh_runtime* const other = new_runtime();
    std::vector<sh_block> second(blocks_.size());
    for (size_t i = 0, tensor = 0; i < second.size(); i++) {
        std::vector<sh_segment> segments;
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        for (; desc.bytes < truth_[i].size(); tensor++) {
            sh_segment& segment = segments.emplace_back(sh_segment(SH_SEGMENT_INIT));
            segment.kind = SH_SOURCE_POINTER;
            segment.pointer = tensors_[tensor]->frame.data();
            segment.packed_bytes = tensors_[tensor]->frame.size();
            segment.bytes = tensors_[tensor]->contents.size();
            segment.offset = desc.bytes;
            desc.bytes += segment.bytes;
        }
        desc.segments = segments.data();
        desc.segment_count = segments.size();
        desc.flags = SH_BLOCK_PIN;
        SUCCEEDS(sh_register_blocks(other, &desc, 1, &second[i]));
    }
    const auto use = [&](sh_runtime* runtime, const std::vector<sh_block>& blocks) {
        for (int i = 0; i < 4; i++) {
            SUCCEEDS(sh_step_begin(runtime));
            for (size_t block = 0; block < blocks.size(); block++) expect_bytes(runtime, blocks[block], truth_[block]);
            SUCCEEDS(sh_step_end(runtime));
        }
    };
    std::thread thread([&] { use(other, second); });
    use(runtime_, blocks_);
    thread.join();
    EXPECT_GE(beside(runtime_), kLeast);
    EXPECT_GE(beside(other), kLeast);
    EXPECT_LE(device_.memory().peak_bytes, 2 * kBudget);
    sh_runtime_destroy(other);
}

// A frame that was damaged before it was registered is the workers', who name the damage.
TEST_F(UnpackingTest, DamageIsNamed) {
    add_model(runtime_);
    static PackedTensor damaged;  // outlives the runtime, which may load ahead
    damaged = *tensors_[0];
    damaged.frame.back() ^= 1;
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_POINTER;
    segment.pointer = damaged.frame.data();
    segment.packed_bytes = damaged.frame.size();
    segment.bytes = damaged.contents.size();
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    desc.segments = &segment;
    desc.segment_count = 1;
    desc.bytes = segment.bytes;
    desc.flags = SH_BLOCK_PIN;
    sh_block block = 0;
    SUCCEEDS(sh_register_blocks(runtime_, &desc, 1, &block));
    sh_view view = SH_VIEW_INIT;
    EXPECT_EQ(sh_acquire(runtime_, block, SH_STREAM_HOST, 0, &view), SH_ERROR_SOURCE);
    EXPECT_NE(why().find("checksum"), std::string::npos) << why();
}

}  // namespace
}  // namespace stagehand::test
