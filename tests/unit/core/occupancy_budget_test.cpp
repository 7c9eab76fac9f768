// Memory of sh_alloc() in the budget that it shares with runtimes.
#include "occupancy_fixture.h"

namespace stagehand::test {
namespace {

class OccupancyBudget : public testing::Test {
protected:
    static constexpr uint64_t kUnit = 64 << 10;  // a page of the device

    OccupancyBudget() {
        settings_.name = "host";
        settings_.options = "capacity=64MiB;granularity=64KiB";
        settings_.budget_bytes = 16 * kMiB;
        settings_.page_bytes = kUnit;
    }
    sh_status alloc(sh_device* device, uint64_t bytes, uint64_t* out) { return sh_alloc(device, bytes, nullptr, out); }

    DeviceSettings settings_;
};

TEST_F(OccupancyBudget, AnAllocationBeyondTheBudgetIsRefused) {
    TestDevice device(settings_);
    uint64_t address = 0, other = 0;
    SUCCEEDS(alloc(device.get(), 12 * kMiB, &address));
    EXPECT_EQ(device.memory().used_bytes, 12 * kMiB);
    EXPECT_EQ(device.memory().runtime_count, 0u);
    EXPECT_REFUSED(alloc(device.get(), 5 * kMiB, &other), SH_ERROR_BUDGET, "17.0 MiB");
    EXPECT_NE(why().find("16.0 MiB"), std::string::npos) << why();
    EXPECT_EQ(device.memory().used_bytes, 12 * kMiB);
    SUCCEEDS(alloc(device.get(), 4 * kMiB, &other));
    EXPECT_EQ(sh_device_set_budget(device.get(), 15 * kMiB), SH_ERROR_BUDGET);
    SUCCEEDS(sh_free(device.get(), address));
    SUCCEEDS(sh_device_set_budget(device.get(), 15 * kMiB));
}

TEST_F(OccupancyBudget, WhatTheDeviceDoesNotHaveIsRefusedAtOnce) {
    if (devices_without_pages()) GTEST_SKIP() << "memory without pages has no tables";
    settings_.budget_bytes = UINT64_MAX;
    TestDevice device(settings_);
    uint64_t address = 0;
    for (const uint64_t bytes : {65 * kMiB, uint64_t(1) << 46}) {
        EXPECT_REFUSED(alloc(device.get(), bytes, &address), SH_ERROR_OUT_OF_DEVICE_MEMORY,
                       "more than the device has: 64.0 MiB");
    }
    EXPECT_EQ(device.memory().used_bytes, 0u);
    SUCCEEDS(alloc(device.get(), 60 * kMiB, &address));
}

TEST_F(OccupancyBudget, RuntimesGiveMemoryUpForItAndTakeItInAPause) {
    if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    SoloModel model(settings_, equal_blocks(8, 2 * kMiB), forward(8));
    SUCCEEDS(model.step(forward(8)));
    EXPECT_GT(model.memory().used_bytes, 14 * kMiB);
    uint64_t address = 0;
    SUCCEEDS(alloc(model.device(), 10 * kMiB, &address));
    EXPECT_LE(model.memory().used_bytes, 16 * kMiB);
    const std::vector<uint8_t> truth = contents_of(7, 1, 10 * kMiB);
    std::memcpy(reinterpret_cast<void*>(address), truth.data(), truth.size());
    SUCCEEDS(model.step(forward(8)));
    EXPECT_LE(model.memory().used_bytes, 16 * kMiB);
    const char* const tags[] = {"default"};
    sh_pause_options options = SH_PAUSE_OPTIONS_INIT;
    options.tags = tags;
    options.tag_count = 1;
    SUCCEEDS(sh_pause(model.device(), &options, nullptr));
    for (int k = 0; k < 3; k++) SUCCEEDS(model.step(forward(8)));
    EXPECT_GT(model.memory().used_bytes, 14 * kMiB) << "the model has the memory";
    SUCCEEDS(sh_resume(model.device(), nullptr, nullptr));
    EXPECT_LE(model.memory().used_bytes, 16 * kMiB);
    EXPECT_EQ(std::memcmp(reinterpret_cast<const void*>(address), truth.data(), truth.size()), 0);
    SUCCEEDS(model.step(forward(8)));
    EXPECT_LE(model.memory().peak_bytes, 16 * kMiB);
    EXPECT_EQ(model.memory().runtime_count, 1u);
}

TEST_F(OccupancyBudget, ResumeWithoutRoomLeavesTheTagReleased) {
    if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    TestDevice device(settings_);
    uint64_t address = 0;
    SUCCEEDS(alloc(device.get(), 10 * kMiB, &address));
    const std::vector<uint8_t> truth = contents_of(7, 1, 10 * kMiB);
    std::memcpy(reinterpret_cast<void*>(address), truth.data(), truth.size());
    SUCCEEDS(sh_pause(device.get(), nullptr, nullptr));
    SUCCEEDS(sh_device_set_budget(device.get(), 8 * kMiB));
    EXPECT_EQ(sh_resume(device.get(), nullptr, nullptr), SH_ERROR_BUDGET);
    auto info = sh_sized<sh_occupancy_info>();
    SUCCEEDS(sh_occupancy_get_info(device.get(), nullptr, &info));
    EXPECT_EQ(info.state, uint32_t(SH_OCCUPANCY_RELEASED));
    EXPECT_EQ(device.memory().used_bytes, 0u);
    SUCCEEDS(sh_device_set_budget(device.get(), 16 * kMiB));
    SUCCEEDS(sh_resume(device.get(), nullptr, nullptr));
    EXPECT_EQ(std::memcmp(reinterpret_cast<const void*>(address), truth.data(), truth.size()), 0);
}

// A budget above the device's memory is no promise: the driver refuses.
TEST_F(OccupancyBudget, TheDriverMayHaveLess) {
    settings_.budget_bytes = 1024 * kMiB;
    TestDevice device(settings_);
    uint64_t address = 0, other = 0;
    SUCCEEDS(alloc(device.get(), 60 * kMiB, &address));
    EXPECT_EQ(alloc(device.get(), 10 * kMiB, &other), SH_ERROR_OUT_OF_DEVICE_MEMORY) << why();
    EXPECT_EQ(device.memory().used_bytes, 60 * kMiB);
    SUCCEEDS(alloc(device.get(), 2 * kMiB, &other));
}

}  // namespace
}  // namespace stagehand::test
