// PackedPlanner: packed weights that stay on the device where workers read sources more slowly than the link copies.
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "../codec/weights.h"
#include "backend/backend_device.h"
#include "codec/frame.h"
#include "core/memory/registry.h"
#include "core/plan/packed_planner.h"
#include "plugins/backends.h"

namespace stagehand::core {
namespace {

constexpr uint64_t kPage = 64 << 10, kBlock = 2 << 20;
constexpr int kBlocks = 20;
constexpr uint64_t kShare = 36 << 20;  // less than the weights; enough for all of them packed, and to unpack in

class PackedPlannerTest : public testing::Test {
protected:
    void SetUp() override {
        const sh_backend* backend = nullptr;
        std::string path;
        ASSERT_TRUE(plugins::find_backend("host", nullptr, &backend, &path).ok());
        sh_backend_device* device = nullptr;
        sh_backend_device_info info = {};
        info.struct_size = sizeof info;
        ASSERT_EQ(backend->device_open(0, "capacity=64MiB", &device, &info), SH_OK);
        device_ = std::make_unique<BackendDevice>(*backend, device, info);
        registry_ = std::make_unique<Registry>(*device_, kPage, 4 << 20, 7);
        const auto weights = codec::test::weights(codec::FloatFormat::bf16, kBlock / 2, 1);
        ASSERT_TRUE(codec::pack_frame(codec::FloatFormat::bf16, weights.data(), kBlock, 2, &frame_).ok());
        for (int i = 0; i < kBlocks; i++) add_block();
    }

    // Of memory that workers read.
    void add_block() {
        sh_segment segment = SH_SEGMENT_INIT;
        segment.kind = SH_SOURCE_MAPPED;
        segment.pointer = frame_.data();
        segment.packed_bytes = frame_.size();
        segment.bytes = kBlock;
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        desc.segments = &segment;
        desc.segment_count = 1;
        desc.bytes = kBlock;
        sh_block block = 0;
        const Status status = registry_->add({&desc, 1}, {}, {}, 1, true, &block);
        ASSERT_TRUE(status.ok()) << status.text();
        order_entries_.push_back({registry_->find(block)->unit, 10'000, 1});
    }

    // `source_speed`: bytes per nanosecond, as three loads have shown it.
    PlanResult plan(double source_speed) {
        for (Unit& unit : registry_->units())
            for (int i = 0; i < 4; i++) unit.delivery.saw(1 / source_speed);
        Order order;
        order.set(order_entries_, registry_->units().size(), true);
        PlanLimits limits;
        limits.link_bytes_per_ns = 50;
        limits.unpack_ns_per_byte = 0.01;
        limits.unpack_batch_bytes = 2 << 20;
        PackedPlanner planner(*registry_);
        PlanResult result;
        const Status status = planner.make(order, limits, kShare / kPage, &result);
        EXPECT_TRUE(status.ok()) << status.text();
        return result;
    }

    std::unique_ptr<BackendDevice> device_;
    std::unique_ptr<Registry> registry_;
    std::vector<uint8_t> frame_;
    std::vector<Order::Entry> order_entries_;
};

// The link brings what is missing in less time than all weights take to be unpacked.
TEST_F(PackedPlannerTest, KeepsNothingPackedIfSourcesAreFast) {
    const PlanResult result = plan(100);
    EXPECT_EQ(result.unpack.kept_pages, 0u);
    EXPECT_GT(result.bytes_per_step, 0u);
}

TEST_F(PackedPlannerTest, KeepsAllPackedIfSourcesAreSlow) {
    const PlanResult result = plan(5);
    EXPECT_GT(result.unpack.kept_pages, 0u);
    EXPECT_EQ(result.bytes_per_step, 0u);
    EXPECT_LE(result.pages(), kShare / kPage);
    EXPECT_LT(result.step_ns, (kBlocks * kBlock - kShare) / 5.0) << "as long as workers read what is missing";
    EXPECT_GE(result.step_ns, result.bound_ns);
}

TEST_F(PackedPlannerTest, KnowsHowLongKeptWeightsTakeToCome) {
    const PlanResult kept = plan(5);
    const double contents = static_cast<double>(kBlocks * kBlock - kept.resident_pages * kPage);
    PlanLimits limits;
    limits.link_bytes_per_ns = 50;
    PackedPlanner planner(*registry_);
    EXPECT_NEAR(planner.kept_ns(limits, kept), contents / 5, 0.1 * contents / 5);
    const PlanResult none = plan(100);
    EXPECT_EQ(planner.kept_ns(limits, none), 0);
}

// Keeping all packed takes as long whatever the sources do, so no plan may take longer.
TEST_F(PackedPlannerTest, FasterSourcesMakeNoLongerSteps) {
    const double slowest = plan(5).step_ns;
    for (const double speed : {10, 15, 25, 40, 60}) EXPECT_LE(plan(speed).step_ns, 1.01 * slowest) << speed;
}

}  // namespace
}  // namespace stagehand::core
