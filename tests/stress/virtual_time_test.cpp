// In virtual time, a step of the core takes the time that the plan's recurrence says, whatever the shapes, the order
// and the budget are.
#include <chrono>

#include "engine.h"
#include "scale.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kSimPage = 64 << 10;
constexpr uint64_t kLink = 10'000'000'000;

struct Shape {
    const char* name;
    std::vector<uint64_t> bytes;
};

Shape eight_b() {
    std::vector<uint64_t> bytes(34,
                                416 * kSimPage);  // a sixteenth of an 8B model's: 1,002 MiB; 32 x 416 MiB; 1,002 MiB
    bytes.front() = bytes.back() = 1002 * kSimPage;
    return {"eight_b", bytes};
}
Shape equal() { return {"equal", std::vector<uint64_t>(40, 200 * kSimPage)}; }
Shape unequal() {
    std::vector<uint64_t> bytes;
    for (uint64_t i = 0; i < 400; i++) bytes.push_back((1 + i * 37 % 60) * kSimPage);
    return {"unequal", bytes};
}

// A runtime on the simulation; sources are never read.
class Simulated {
public:
    Simulated(const std::vector<uint64_t>& bytes, uint64_t budget, const std::vector<size_t>& order,
              double compute_per_copy)
        : order_(order) {
        DeviceSettings settings;
        settings.name = "sim";
        settings.options = "bandwidth=10GB/s;granularity=64KiB";
        settings.page_bytes = kSimPage;
        settings.budget_bytes = budget;
        settings.link_bytes_per_second = kLink;
        settings.staging_bytes = 0;
        device_ = std::make_unique<TestDevice>(settings);
        EXPECT_SUCCEEDS(sh_runtime_create(device_->get(), nullptr, &runtime_));
        std::vector<sh_segment> segments(bytes.size(), SH_SEGMENT_INIT);
        std::vector<sh_block_desc> descs(bytes.size(), SH_BLOCK_DESC_INIT);
        uint64_t total = 0;
        for (size_t i = 0; i < bytes.size(); i++) {
            segments[i].kind = SH_SOURCE_POINTER;
            segments[i].pointer = reinterpret_cast<void*>(uintptr_t(4096));
            segments[i].bytes = descs[i].bytes = bytes[i];
            descs[i].segments = &segments[i];
            descs[i].segment_count = 1;
            total += bytes[i];
        }
        ids_.resize(bytes.size());
        EXPECT_SUCCEEDS(sh_register_blocks(runtime_, descs.data(), descs.size(), ids_.data()));
        // Compute in proportion to the bytes, as a part of the time that copying what does not fit takes.
        const double copy_ns = static_cast<double>(total - std::min(total, budget)) * 1e9 / static_cast<double>(kLink);
        uint64_t used = 0;
        for (const size_t i : order) used += bytes[i];
        std::vector<sh_use> uses;
        for (const size_t i : order) {
            uses.push_back(SH_USE_INIT);
            uses.back().block = ids_[i];
            uses.back().compute_ns = static_cast<uint64_t>(compute_per_copy * copy_ns * static_cast<double>(bytes[i]) /
                                                           static_cast<double>(used)) +
                                     1;
            compute_.push_back(static_cast<int64_t>(uses.back().compute_ns));
        }
        EXPECT_SUCCEEDS(sh_set_schedule(runtime_, uses.data(), uses.size()));
        stream_ = device_->stream();
    }
    ~Simulated() { sh_runtime_destroy(runtime_); }

    sh_plan_info plan() {
        auto info = sh_sized<sh_plan_info>();
        EXPECT_SUCCEEDS(sh_plan(runtime_, nullptr, &info));
        return info;
    }

    void step() {
        auto view = sh_sized<sh_view>();
        SUCCEEDS(sh_step_begin(runtime_, nullptr));
        for (size_t n = 0; n < order_.size(); n++) {
            view = held_view(runtime_, ids_[order_[n]], stream_);
            SUCCEEDS(sh_stream_launch(device_->get(), stream_, nullptr, nullptr, compute_[n]));
            let_go(runtime_, ids_[order_[n]], stream_);
        }
        SUCCEEDS(sh_step_end(runtime_));
    }

    // Returns the time at which the engine's stream has finished.
    uint64_t now() {
        uint64_t ns = 0;
        EXPECT_SUCCEEDS(sh_stream_synchronize(device_->get(), stream_));
        EXPECT_SUCCEEDS(sh_device_get_clock(device_->get(), &ns));
        return ns;
    }

private:
    const std::vector<size_t> order_;
    std::unique_ptr<TestDevice> device_;
    sh_runtime* runtime_ = nullptr;
    sh_stream stream_ = 0;
    std::vector<sh_block> ids_;
    std::vector<int64_t> compute_;
};

class VirtualTime : public testing::TestWithParam<std::tuple<Shape, bool, int>> {};

TEST_P(VirtualTime, steps_take_what_the_plan_says) {
    const auto& [shape, backward, percent] = GetParam();
    uint64_t total = 0;
    for (const uint64_t bytes : shape.bytes) total += bytes;
    const std::vector<size_t> order = backward ? forward_backward(shape.bytes.size()) : forward(shape.bytes.size());
    static uint64_t number = 0;
    for (const double compute : {0.25, 1.0, 4.0}) {
        if (!in_sample(number++)) continue;
        Simulated run(shape.bytes, total * static_cast<uint64_t>(percent) / 100, order, compute);
        const sh_plan_info plan = run.plan();
        for (int k = 0; k < 4; k++) run.step();
        const uint64_t begin = run.now();
        constexpr int kSteps = 8;
        for (int k = 0; k < kSteps; k++) run.step();
        const double step_ns = static_cast<double>(run.now() - begin) / kSteps;
        EXPECT_LE(step_ns, 1.02 * static_cast<double>(plan.step_ns)) << "compute " << compute << " of copy";
        EXPECT_GE(step_ns, 0.98 * static_cast<double>(plan.step_ns)) << "compute " << compute << " of copy";
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, VirtualTime,
                         testing::Combine(testing::Values(eight_b(), equal(), unequal()), testing::Bool(),
                                          testing::Values(25, 50, 75, 90)),
                         [](const auto& info) {
                             return std::string(std::get<0>(info.param).name) +
                                    (std::get<1>(info.param) ? "_backward_" : "_forward_") +
                                    std::to_string(std::get<2>(info.param));
                         });

TEST(ManyBlocks, a_hundred_thousand_run) {
    std::vector<uint64_t> bytes;
    for (uint64_t i = 0; i < shortened(100'000); i++) bytes.push_back((1 + i % 7) * kSimPage + i % 1000);
    Simulated run(bytes, bytes.size() * 2 * kSimPage, forward(bytes.size()), 1.0);
    const sh_plan_info plan = run.plan();
    EXPECT_EQ(plan.scheduled_blocks, bytes.size());
    EXPECT_LE(plan.resident_bytes + plan.ring_bytes + plan.unordered_bytes, plan.budget_bytes);
    for (int k = 0; k < 2; k++) run.step();
}

}  // namespace
}  // namespace stagehand::test
