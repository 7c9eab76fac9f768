// Packed tensors that cross the link packed: the device unpacks them.
#include <thread>
#include <vector>

#include "unpacking_fixture.h"

namespace stagehand::test {
namespace {

TEST_F(UnpackingTest, TheLinkCarriesPackedBytes) {
    for (int i = 0; i < 3; i++) add_block(runtime_, SH_BLOCK_PIN, {{FloatFormat::bf16, 9 * kDeviceMiB + 7}});
    for (int i = 0; i < 3; i++) step(runtime_);
    EXPECT_GE(beside(runtime_), kLeast);
    EXPECT_LE(beside(runtime_), kBudget / 8);
    const sh_plan_info plan = this->plan();
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
    add_block(runtime_, 0, {{FloatFormat::bf16, 9 * kDeviceMiB + 7}, {FloatFormat::f8_e4m3, 9999}});
    kind_ = SH_SOURCE_FILE;
    add_block(runtime_, 0, {{FloatFormat::bf16, 9 * kDeviceMiB + 8}, {FloatFormat::f32, kDeviceMiB / 2}});
    kind_ = SH_SOURCE_MAPPED;
    add_block(runtime_, 0, {{FloatFormat::bf16, 9 * kDeviceMiB + 9}});
    for (int i = 0; i < 3; i++) step(runtime_);
    EXPECT_GE(beside(runtime_), kLeast);
    const sh_plan_info plan = this->plan();
    const uint64_t before = stats(runtime_).bytes_to_device;
    for (int i = 0; i < 3; i++) step(runtime_);
    const double part =
        static_cast<double>(stats(runtime_).bytes_to_device - before) / static_cast<double>(3 * plan.bytes_per_step);
    EXPECT_GT(part, 0.55);  // the plan tells the bytes that stay only about
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
    SUCCEEDS(sh_step_begin(runtime_, nullptr));
    EXPECT_GE(beside(runtime_), kLeast);
    auto view = sh_sized<sh_view>();
    EXPECT_REFUSED(sh_acquire(runtime_, blocks_[0], SH_STREAM_HOST, 0, &view), SH_ERROR_SOURCE, "checksum");
    SUCCEEDS(sh_step_end(runtime_));
    write_last(tensor.frame.back());
    // A load ahead of use may have met the damage, and its failure is reported once.
    if (sh_acquire(runtime_, blocks_[0], SH_STREAM_HOST, 0, &view) == SH_OK) let_go(runtime_, blocks_[0]);
    step(runtime_);
}

TEST_F(UnpackingTest, AModelThatFitsNeedsNoMemoryToUnpackIn) {
    add_block(runtime_, SH_BLOCK_PIN, {{FloatFormat::bf16, 4 * kDeviceMiB}});
    for (int i = 0; i < 3; i++) step(runtime_);
    EXPECT_EQ(device_.memory().used_bytes, 8 * kDeviceMiB);
}

TEST_F(UnpackingTest, ThePlanCountsPackedBytes) {
    add_model(runtime_);
    set_schedule();
    step(runtime_);
    const sh_plan_info plan = this->plan(1'000'000);  // so slow that neither computing nor unpacking counts
    EXPECT_GT(plan.packed_resident_bytes, 0u);
    const double ratio = static_cast<double>(plan.step_ns) / (static_cast<double>(plan.bytes_per_step) * 1000);
    EXPECT_GT(ratio, 0.65);
    EXPECT_LT(ratio, 0.80);
    EXPECT_LE(plan.bound_ns, plan.step_ns);
    EXPECT_GT(plan.bound_ns, plan.step_ns / 8);  // a third of the memory is the ring's, or chunks arrive in it
}

TEST_F(UnpackingTest, MemoryToUnpackInIsGivenBack) {
    add_model(runtime_);
    for (int i = 0; i < 2; i++) step(runtime_);
    SUCCEEDS(sh_trim(runtime_, 0, nullptr));
    EXPECT_EQ(device_.memory().used_bytes, 0u);
    step(runtime_);
    EXPECT_GE(beside(runtime_), kLeast);
    if (!devices_without_pages()) {
        pause_and_resume();
        step(runtime_);
        EXPECT_GE(beside(runtime_), kLeast);
    }
    SUCCEEDS(sh_unregister_blocks(runtime_, blocks_.data(), blocks_.size()));
    sh_runtime_destroy(runtime_);
    runtime_ = nullptr;
    EXPECT_EQ(device_.memory().used_bytes, 0u);
}

// The memory is not worth a refusal: with less than four times its size, the workers unpack.
TEST_F(UnpackingTest, ASmallBudgetIsForWeights) {
    SUCCEEDS(sh_device_set_budget(device_.get(), 15 << 20));
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
            SUCCEEDS(sh_step_begin(runtime, nullptr));
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
    sh_segment segment = memory_segment(damaged.frame.data(), damaged.contents.size());
    segment.packed_bytes = damaged.frame.size();
    const sh_block block = register_block(runtime_, segment, SH_BLOCK_PIN);
    auto view = sh_sized<sh_view>();
    EXPECT_REFUSED(sh_acquire(runtime_, block, SH_STREAM_HOST, 0, &view), SH_ERROR_SOURCE, "checksum");
}

}  // namespace
}  // namespace stagehand::test
