// Packed files in virtual time: plans count with the simulated speeds, and steps take as long as the plans say.
#include "unpacking_fixture.h"

namespace stagehand::test {
namespace {

class PackedVirtual : public UnpackingTest {
protected:
    PackedVirtual() : UnpackingTest(settings()) { kind_ = SH_SOURCE_FILE; }
    static DeviceSettings settings() {
        DeviceSettings sim = kDevice;
        sim.name = "sim";
        sim.options = "bandwidth=1GB/s;granularity=64KiB;unpack_speed=100GB/s";
        sim.link_bytes_per_second = 1'000'000'000;
        return sim;
    }
    uint64_t now() {
        uint64_t now = 0;
        EXPECT_SUCCEEDS(sh_device_get_clock(device_.get(), &now));
        return now;
    }
    // The mean time of steps that compute for so long in each block.
    double step_ns(int count, int64_t compute_ns) {
        const uint64_t began = now();
        for (int i = 0; i < count; i++) {
            EXPECT_SUCCEEDS(sh_step_begin(runtime_, nullptr));
            for (const sh_block block : blocks_) {
                auto view = sh_sized<sh_view>();
                EXPECT_SUCCEEDS(sh_acquire(runtime_, block, stream_, 0, &view));
                EXPECT_SUCCEEDS(sh_stream_launch(device_.get(), stream_, nullptr, nullptr, compute_ns));
                EXPECT_SUCCEEDS(sh_release(runtime_, block, stream_));
            }
            EXPECT_SUCCEEDS(sh_step_end(runtime_));
            EXPECT_SUCCEEDS(sh_stream_synchronize(device_.get(), stream_));
        }
        return static_cast<double>(now() - began) / count;
    }

    const sh_stream stream_ = device_.stream();
};

TEST_F(PackedVirtual, a_dry_run_tells_the_speed_of_unpacking) {
    add_model(runtime_, 0);
    set_schedule();
    const sh_plan_info told = plan();
    EXPECT_NEAR(static_cast<double>(told.unpack_bytes_per_second), 100e9, 1e9);
    EXPECT_EQ(device_.memory().used_bytes, 0u);
}

TEST_F(PackedVirtual, plain_weights_have_no_speed_of_unpacking) {
    std::vector<uint8_t> bytes(1 << 20);
    sh_segment segment = memory_segment(bytes.data(), bytes.size());
    blocks_.push_back(register_block(runtime_, segment));
    set_schedule();
    EXPECT_EQ(plan().unpack_bytes_per_second, 0u);
    EXPECT_EQ(plan().unpack_bytes, 0u);
}

TEST_F(PackedVirtual, steps_take_as_long_as_planned) {
    add_model(runtime_, 0);
    set_schedule(1'000'000);
    (void)step_ns(2, 1'000'000);
    const sh_plan_info planned = plan();
    EXPECT_GT(planned.unpack_bytes, 0u);
    EXPECT_GT(planned.packed_resident_bytes, 0u);
    const double step = step_ns(5, 1'000'000);
    EXPECT_NEAR(step / static_cast<double>(planned.step_ns), 1, 0.1);
    EXPECT_GE(step, static_cast<double>(planned.bound_ns));
}

}  // namespace
}  // namespace stagehand::test
