// Captured steps over packed weights: a launch copies and unpacks them, in the memory that other loads use as well.
#include <numeric>

#include "../unit/core/unpacking_fixture.h"
#include "captured_step.h"
#include "device_under_test.h"

namespace stagehand::test {
namespace {

class PackedGraphs : public UnpackingTest {
protected:
    PackedGraphs() : UnpackingTest(settings()) { pins_itself_ = true; }
    static DeviceSettings settings() {
        DeviceSettings device = kDevice;
        device.name = "capture:0";
        return device;
    }
    static bool skipped() { return !std::getenv("STAGEHAND_BACKEND_PATH") || kOneThreadOnly; }
    void SetUp() override {
        if (skipped()) GTEST_SKIP() << "STAGEHAND_BACKEND_PATH does not lead to the capture backend";
        UnpackingTest::SetUp();
    }

    // What a captured step uses.
    sh_runtime* runtime() const { return runtime_; }
    TestDevice& test_device() { return device_; }
    sh_block id(size_t i) const { return blocks_[i]; }
    const std::vector<uint8_t>* truth(size_t i) const { return &truth_[i]; }
    using PackedStep = StepOf<PackedGraphs>;
    friend PackedStep;

    std::vector<size_t> forward() const {
        std::vector<size_t> order(blocks_.size());
        std::iota(order.begin(), order.end(), size_t(0));
        return order;
    }
    // With much computing, no weights stay packed.
    sh_plan_info make_plan(uint64_t compute_ns) {
        set_schedule(compute_ns);
        auto plan = sh_sized<sh_plan_info>();
        EXPECT_SUCCEEDS(sh_plan(runtime_, nullptr, &plan));
        EXPECT_GT(plan.unpack_bytes, 0u);
        EXPECT_EQ(plan.packed_resident_bytes == 0, compute_ns > 1);
        return plan;
    }
    uint64_t brought() const { return stats(runtime_).bytes_to_device; }
};
constexpr uint64_t kComputing[] = {1, 60'000'000'000};

TEST_F(PackedGraphs, launches_unpack) {
    for (const uint64_t compute_ns : kComputing) {
        SCOPED_TRACE(compute_ns);
        if (compute_ns == 1) add_model(runtime_, 0);
        const sh_plan_info plan = make_plan(compute_ns);
        const sh_stream stream = device_.stream();
        PackedStep captured(*this, stream, forward());
        SUCCEEDS(captured.launch(stream));
        const uint64_t before = brought();
        for (int k = 0; k < 3; k++) SUCCEEDS(captured.launch(stream));
        // Each launch brings the same bytes: those that do not stay, packed.
        const uint64_t each = (brought() - before) / 3;
        EXPECT_GT(each, plan.bytes_per_step / 2);
        EXPECT_LT(static_cast<double>(each), 0.85 * static_cast<double>(plan.bytes_per_step));
        device_.synchronize();
        EXPECT_EQ(captured.compared(), 4 * blocks_.size());
        EXPECT_LE(device_.memory().peak_bytes, kBudget);
    }
}

// The graph, the steps and the loads of resident parts have one memory for packed weights, and take turns.
TEST_F(PackedGraphs, launches_and_steps_take_turns) {
    add_model(runtime_, 0);
    for (const uint64_t compute_ns : kComputing) {
        SCOPED_TRACE(compute_ns);
        make_plan(compute_ns);
        const sh_stream stream = device_.stream(), other = device_.stream();
        PackedStep captured(*this);
        SUCCEEDS(captured.begin(stream));
        for (const size_t i : forward()) SUCCEEDS(captured.use(i, stream, i % 3 ? 0 : 3'000'000));
        SUCCEEDS(captured.end());
        for (int k = 0; k < 4; k++) {
            SUCCEEDS(captured.launch(k % 2 ? stream : other));
            if (k > 1) step(runtime_);
            SUCCEEDS(sh_invalidate_blocks(runtime_, blocks_.data(), blocks_.size()));  // resident parts come again
            SUCCEEDS(captured.launch(stream));
            step(runtime_);
        }
        device_.synchronize();
        EXPECT_EQ(captured.compared(), 8 * blocks_.size());
    }
}

TEST_F(PackedGraphs, are_launched_after_a_resume) {
    if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    add_model(runtime_, 0);
    for (const uint64_t compute_ns : kComputing) {
        SCOPED_TRACE(compute_ns);
        make_plan(compute_ns);
        const sh_stream stream = device_.stream();
        PackedStep captured(*this, stream, forward());
        for (int k = 0; k < 3; k++) {
            SUCCEEDS(captured.launch(stream));
            ASSERT_NO_FATAL_FAILURE(pause_and_resume());
        }
        SUCCEEDS(captured.launch(stream));
        device_.synchronize();
        EXPECT_EQ(captured.compared(), 4 * blocks_.size());
    }
}

// Only leaving the graph tells when its launch ends.
TEST_F(PackedGraphs, no_packed_block_is_loaded_between_enter_and_leave) {
    add_model(runtime_, 0);
    add_block(runtime_, SH_BLOCK_UNORDERED, {{FloatFormat::bf16, 100'000}});
    const sh_block outside = blocks_.back();
    blocks_.pop_back();
    make_plan(1);
    const sh_stream stream = device_.stream();
    PackedStep captured(*this, stream, forward());
    SUCCEEDS(sh_graph_enter(captured.graph(), stream));
    auto view = sh_sized<sh_view>();
    EXPECT_REFUSED(sh_acquire(runtime_, outside, stream, 0, &view), SH_ERROR_INVALID_STATE,
                   "is packed and cannot be loaded: a graph");
    SUCCEEDS(sh_graph_leave(captured.graph(), stream));
    expect_bytes(runtime_, outside, truth_.back());
    SUCCEEDS(sh_graph_enter(captured.graph(), stream));  // what is there may be used
    view = held_view(runtime_, outside, stream);
    let_go(runtime_, outside, stream);
    SUCCEEDS(sh_graph_leave(captured.graph(), stream));
}

// No worker reads a file for a launch, not even one whose weights have stayed on the device.
TEST_F(PackedGraphs, refuse_packed_files) {
    kind_ = SH_SOURCE_FILE;
    for (const uint64_t compute_ns : kComputing) {
        SCOPED_TRACE(compute_ns);
        for (int i = 0; i < 19 && compute_ns == 1; i++) add_block(runtime_, 0, {{FloatFormat::bf16, kDeviceMiB + 3}});
        make_plan(compute_ns);
        step(runtime_);
        PackedStep captured(*this);
        SUCCEEDS(captured.begin(device_.stream()));
        sh_status status = SH_OK;
        for (size_t i = 0; i < blocks_.size() && status == SH_OK; i++) status = captured.use(i);
        EXPECT_REFUSED(status, SH_ERROR_UNSUPPORTED, "cannot read a source that is not pinned");
        SUCCEEDS(captured.end());
    }
}

// A launch copies from the addresses that were captured, so a block of a graph keeps its sources. Another block gets
// other ones, which may take more room on the device, and the graph finds its own where they were.
TEST_F(PackedGraphs, let_other_blocks_get_other_segments) {
    if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    for (int i = 0; i < 19; i++) add_block(runtime_, 0, {{FloatFormat::bf16, kDeviceMiB + 3}});
    make_plan(1);
    step(runtime_);
    const sh_stream stream = device_.stream();
    PackedStep captured(*this);
    SUCCEEDS(captured.begin(stream));
    for (const size_t i : {0, 1, 3, 4}) SUCCEEDS(captured.use(i));
    SUCCEEDS(captured.end());
    SUCCEEDS(captured.launch(stream));
    std::vector<uint8_t> other(truth_[2].size());
    for (size_t k = 0; k < other.size(); k++) other[k] = static_cast<uint8_t>(k % 2 ? 0x3c : (k * 2654435761u) >> 13);
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_POINTER;
    std::vector<uint8_t> frame;
    EXPECT_TRUE(codec::pack_frame(FloatFormat::f16, other.data(), other.size(), 2, &frame).ok());
    segment.pointer = pinned(frame);
    segment.packed_bytes = frame.size();
    segment.bytes = other.size();
    for (const size_t i : {1, 2}) SUCCEEDS(sh_source_update_begin(runtime_, &blocks_[i], 1));
    EXPECT_REFUSED(sh_source_replace(runtime_, blocks_[1], &segment, 1), SH_ERROR_INVALID_STATE,
                   "destroy the graph first");
    SUCCEEDS(sh_source_replace(runtime_, blocks_[2], &segment, 1));
    for (const size_t i : {1, 2}) SUCCEEDS(sh_source_update_end(runtime_, &blocks_[i], 1));
    truth_[2] = other;
    for (int k = 0; k < 2; k++) {
        SUCCEEDS(captured.launch(stream));
        step(runtime_);
        pause_and_resume();
        SUCCEEDS(captured.launch(stream));
    }
    // While the memory is away, too.
    SUCCEEDS(sh_pause(device_.get(), nullptr, nullptr));
    SUCCEEDS(sh_source_update_begin(runtime_, &blocks_[5], 1));
    SUCCEEDS(sh_source_replace(runtime_, blocks_[5], &segment, 1));
    SUCCEEDS(sh_source_update_end(runtime_, &blocks_[5], 1));
    truth_[5] = other;
    SUCCEEDS(sh_resume(device_.get(), nullptr, nullptr));
    SUCCEEDS(captured.launch(stream));
    step(runtime_);
    device_.synchronize();
    EXPECT_EQ(captured.compared(), 24u);
}

TEST_F(PackedGraphs, refuse_packed_blocks_that_may_become_plain) {
    std::vector<std::vector<uint8_t>> memory;
    for (int i = 0; i < 19; i++) memory.push_back(weights(FloatFormat::bf16, kDeviceMiB + 3, static_cast<uint8_t>(i)));
    for (std::vector<uint8_t>& bytes : memory) {
        sh_segment segment = memory_segment(bytes.data(), bytes.size(), SH_FORMAT_BF16);
        blocks_.push_back(register_block(runtime_, segment, SH_BLOCK_PACK | SH_BLOCK_MUTABLE | SH_BLOCK_PIN));
        truth_.push_back(bytes);
    }
    make_plan(1);
    step(runtime_);
    {
        PackedStep captured(*this);
        SUCCEEDS(captured.begin(device_.stream()));
        EXPECT_REFUSED(captured.use(0), SH_ERROR_UNSUPPORTED, "SH_BLOCK_MUTABLE");
        SUCCEEDS(captured.end());
    }
    SUCCEEDS(sh_source_update_begin(runtime_, blocks_.data(), blocks_.size()));
    memory[5][7] ^= 1;
    truth_[5][7] ^= 1;
    SUCCEEDS(sh_source_update_end(runtime_, blocks_.data(), blocks_.size()));
    step(runtime_);  // they are plain now
    SUCCEEDS(sh_plan(runtime_, nullptr, nullptr));
    PackedStep captured(*this);
    ASSERT_NO_FATAL_FAILURE(captured.capture(device_.stream(), forward()));
    SUCCEEDS(captured.launch(device_.stream()));
    device_.synchronize();
    EXPECT_EQ(captured.compared(), blocks_.size());
}

}  // namespace
}  // namespace stagehand::test
