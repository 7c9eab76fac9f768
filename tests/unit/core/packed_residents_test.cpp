// Weights that stay on the device packed: the link brings them once, and each use unpacks them.
#include <vector>

#include "../../stress/scale.h"
#include "unpacking_fixture.h"

namespace stagehand::test {
namespace {

class PackedResidents : public UnpackingTest {
protected:
    // Blocks of 2 MiB and a little, whose chunks lie across the borders of pages.
    void add_blocks(int count, uint32_t flags = SH_BLOCK_PIN) {
        for (int i = 0; i < count; i++) add_block(runtime_, flags, {{FloatFormat::bf16, kDeviceMiB + 3}});
        set_schedule();
    }
    void steps(int count) {
        for (int i = 0; i < count; i++) step(runtime_);
    }
    uint64_t brought() { return stats(runtime_).bytes_to_device; }
};

TEST_F(PackedResidents, AModelThatFitsPackedNeedsNoCopies) {
    add_blocks(19);
    steps(2);
    const sh_plan_info now = plan();
    EXPECT_LT(now.packed_resident_bytes, 28 * kDeviceMiB);
    EXPECT_GT(now.packed_resident_bytes, 16 * kDeviceMiB);
    EXPECT_EQ(now.bytes_per_step, 0u);
    EXPECT_EQ(now.bound_bytes_per_step, 0u);
    const uint64_t before = brought();
    steps(4);
    EXPECT_EQ(brought(), before);
    EXPECT_LE(device_.memory().peak_bytes, kBudget);
}

// Memory for packed weights does not take what a block outside the order needs.
TEST_F(PackedResidents, LeaveRoomForABlockOutsideTheOrder) {
    for (const uint32_t held : {1, 4}) {
        for (const int ordered : {12, 16}) {
            sh_runtime_destroy(runtime_);
            blocks_.clear();
            tensors_.clear();  // the blocks have the same weights each time
            const sh_runtime_options options = RuntimeSettings{.max_held = held}.options();
            SUCCEEDS(sh_runtime_create(device_.get(), &options, &runtime_));
            add_blocks(ordered);
            for (int i = ordered; i < 24; i++)  // in no schedule
                add_block(runtime_, SH_BLOCK_PIN, {{FloatFormat::bf16, kDeviceMiB + 3}});
            uint64_t plans = 0;
            for (uint64_t budget = 8 * kDeviceMiB; budget <= kBudget; budget += shortened_stride(kDeviceMiB / 4)) {
                sh_plan_options options = SH_PLAN_OPTIONS_INIT;
                options.flags = SH_PLAN_DRY_RUN;
                options.budget_bytes = budget;
                auto info = sh_sized<sh_plan_info>();
                if (sh_plan(runtime_, &options, &info) != SH_OK) continue;
                plans += info.packed_resident_bytes > 0;
                ASSERT_GE(info.unordered_bytes, truth_.back().size()) << budget << ", " << held << " held";
            }
            EXPECT_GE(plans, shortened(10));
        }
    }
}

// What does not fit packed either is streamed packed, beside the rest.
TEST_F(PackedResidents, ALargerModelStreamsTheRest) {
    add_blocks(30);
    steps(2);
    const sh_plan_info now = plan();
    EXPECT_GT(now.packed_resident_bytes, 16 * kDeviceMiB);
    const uint64_t before = brought();
    steps(3);
    // 60 MiB take 42 MiB packed, and about 25 MiB of them stay. Of plain weights, 25 MiB would stay and 35 MiB take 24.
    const double a_step = static_cast<double>(brought() - before) / 3 / static_cast<double>(kDeviceMiB);
    EXPECT_LT(a_step, 21);
    EXPECT_GT(a_step, 8);
    EXPECT_NEAR(a_step, 0.7 * static_cast<double>(now.bytes_per_step) / static_cast<double>(kDeviceMiB), 4);
    EXPECT_GE(now.step_ns, now.bound_ns);
    EXPECT_LE(device_.memory().peak_bytes, kBudget);
}

TEST_F(PackedResidents, StayWhateverTheirSource) {
    add_blocks(6, 0);
    kind_ = SH_SOURCE_FILE;
    add_blocks(7, 0);
    kind_ = SH_SOURCE_MAPPED;
    add_blocks(6, 0);
    steps(2);
    EXPECT_EQ(plan().bytes_per_step, 0u);
    const uint64_t before = brought();
    steps(3);
    EXPECT_EQ(brought(), before);
}

// SH_BLOCK_PACK packs plain weights when it registers them.
TEST_F(PackedResidents, StayWhereTheLibraryHasPackedThem) {
    for (int i = 0; i < 19; i++) {
        std::vector<uint8_t> contents = packed(FloatFormat::bf16, kDeviceMiB + 3).contents;
        sh_segment segment = memory_segment(contents.data(), contents.size(), SH_FORMAT_BF16);
        blocks_.push_back(register_block(runtime_, segment, SH_BLOCK_PACK));
        truth_.push_back(contents);
    }
    set_schedule();
    steps(2);
    EXPECT_EQ(plan().bytes_per_step, 0u);
    const uint64_t before = brought();
    steps(2);
    EXPECT_EQ(brought(), before);
}

// Where computing hides the copies, nothing is unpacked that need not be.
TEST_F(PackedResidents, AreNoneIfComputingHidesTheCopies) {
    add_blocks(19);
    steps(1);  // with the first plan, the device measures how fast it unpacks
    EXPECT_GT(plan().packed_resident_bytes, 0u);
    EXPECT_EQ(plan(1'000'000'000'000).packed_resident_bytes, 0u) << "the link is faster than unpacking";
    set_schedule(10'000'000'000);
    EXPECT_EQ(plan().packed_resident_bytes, 0u);
    EXPECT_GT(plan().bytes_per_step, 0u);
}

TEST_F(PackedResidents, ComeBackAfterAPauseAndOnAnotherBudget) {
    add_blocks(19);
    steps(2);
    SUCCEEDS(sh_trim(runtime_, 0, nullptr));
    EXPECT_EQ(device_.memory().used_bytes, 0u);
    steps(2);
    if (!devices_without_pages()) {
        pause_and_resume();
        const uint64_t before = brought();
        steps(1);
        EXPECT_GT(brought(), before + 20 * kDeviceMiB) << "all weights are brought again";
        const uint64_t after = brought();
        steps(2);
        EXPECT_EQ(brought(), after);
    }
    SUCCEEDS(sh_device_set_budget(device_.get(), 33 * kDeviceMiB));
    SUCCEEDS(sh_plan(runtime_, nullptr, nullptr));
    steps(2);
    EXPECT_GT(plan().packed_resident_bytes, 0u);
    EXPECT_LE(device_.memory().used_bytes, 33 * kDeviceMiB);
}

TEST_F(PackedResidents, ProtectedBlocksComeFirst) {
    add_blocks(19);
    steps(2);
    sh_scope* protection = nullptr;
    SUCCEEDS(sh_protect_blocks(runtime_, blocks_.data(), 4, &protection));
    SUCCEEDS(sh_plan(runtime_, nullptr, nullptr));
    steps(2);
    EXPECT_GE(plan().resident_bytes, 8 * kDeviceMiB);
    EXPECT_GT(plan().packed_resident_bytes, 0u);
    SUCCEEDS(sh_scope_end(protection));
    SUCCEEDS(sh_plan(runtime_, nullptr, nullptr));
    steps(2);
    EXPECT_EQ(plan().bytes_per_step, 0u);
}

// Blocks come and go while others stay packed.
TEST_F(PackedResidents, BlocksComeAndGo) {
    add_blocks(19);
    steps(2);
    SUCCEEDS(sh_unregister_blocks(runtime_, blocks_.data() + 4, 2));
    blocks_.erase(blocks_.begin() + 4, blocks_.begin() + 6);
    truth_.erase(truth_.begin() + 4, truth_.begin() + 6);
    steps(2);
    add_blocks(3);
    steps(3);
    EXPECT_LE(device_.memory().peak_bytes, kBudget);
}

}  // namespace
}  // namespace stagehand::test
