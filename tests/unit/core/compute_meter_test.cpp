// ComputeMeter: the times of uses on the host's stream, which are measured by the clock.
#include "core/plan/compute_meter.h"

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "plugins/backends.h"

namespace stagehand::test {
namespace {

TEST(ComputeMeter, measures_each_use_from_its_first_view_to_its_last) {
    const sh_backend* host = nullptr;
    std::string path;
    ASSERT_TRUE(plugins::find_backend("host", nullptr, &host, &path).ok());
    sh_backend_device* opened = nullptr;
    sh_backend_device_info info = {};
    info.struct_size = sizeof info;
    ASSERT_EQ(host->device_open(0, "capacity=1MiB", &opened, &info), SH_OK);
    BackendDevice device(*host, opened, info);
    core::ComputeMeter meter(device);
    std::vector<core::Order::Entry> entries(3);
    for (uint32_t unit = 0; unit < 3; unit++) entries[unit].unit = unit;
    constexpr uint64_t kBusyNs = 3'000'000;
    const uint64_t began = device.now_ns();
    meter.start();
    for (uint32_t unit = 0; unit < 3; unit++) {
        meter.begin(unit, SH_STREAM_HOST);
        if (unit != 1) std::this_thread::sleep_for(std::chrono::nanoseconds(kBusyNs));
        meter.end(unit, SH_STREAM_HOST);
    }
    const uint64_t all = device.now_ns() - began;
    EXPECT_TRUE(meter.measured());
    ASSERT_TRUE(meter.read(&entries));
    EXPECT_GE(entries[0].compute_ns, kBusyNs);
    EXPECT_GE(entries[2].compute_ns, kBusyNs);
    EXPECT_LE(entries[0].compute_ns + entries[1].compute_ns + entries[2].compute_ns, all);
}

}  // namespace
}  // namespace stagehand::test
