// Devices: opening, their properties, errors and error texts.
#include <cstring>
#include <thread>

#include "instantiate.h"

namespace conformance {
namespace {

class DeviceTest : public Conformance {};

bool is_power_of_two(uint64_t value) { return value && !(value & (value - 1)); }

TEST_P(DeviceTest, DescribesItself) {
    EXPECT_GE(info().struct_size, sizeof(sh_backend_device_info));
    ASSERT_NE(std::memchr(info().description, 0, sizeof info().description), nullptr);
    EXPECT_STRNE(info().description, "");
    EXPECT_GT(info().total_bytes, 0u);
    EXPECT_TRUE(is_power_of_two(info().granularity_bytes)) << info().granularity_bytes;
    EXPECT_TRUE(is_power_of_two(info().largest_page_bytes)) << info().largest_page_bytes;
    EXPECT_GE(info().largest_page_bytes, info().granularity_bytes);
    EXPECT_GT(info().staging_piece_bytes, 0u);
    EXPECT_GT(info().queue_depth, 0u);
}

TEST_P(DeviceTest, ProbeCountsTheDevice) {
    uint32_t count = 0;
    SH_OK_OR_END(backend().probe(&count));
    EXPECT_GT(count, GetParam().index);
}

TEST_P(DeviceTest, MemoryInfoIsPlausible) {
    uint64_t free = 0, total = 0;
    SH_OK_OR_END(backend().memory_info(device(), &free, &total));
    EXPECT_GT(free, 0u);
    EXPECT_LE(free, total);
    if (quirks().exact_accounting) {
        EXPECT_EQ(total, info().total_bytes);
    }
}

TEST_P(DeviceTest, RefusesUnknownOptionsByName) {
    sh_backend_device* other = nullptr;
    sh_backend_device_info other_info = {};
    const std::string options = (GetParam().options.empty() ? "" : GetParam().options + ";") + "no_such_option=1";
    EXPECT_EQ(backend().device_open(GetParam().index, options.c_str(), &other, &other_info), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::strstr(backend().last_error(), "no_such_option"), nullptr) << backend().last_error();
    EXPECT_EQ(other, nullptr);
}

TEST_P(DeviceTest, RefusesOptionsThatAreNotPairs) {
    sh_backend_device* other = nullptr;
    sh_backend_device_info other_info = {};
    EXPECT_EQ(backend().device_open(GetParam().index, "nonsense", &other, &other_info), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::strstr(backend().last_error(), "nonsense"), nullptr) << backend().last_error();
    EXPECT_EQ(other, nullptr);
}

TEST_P(DeviceTest, RefusesDevicesThatAreNotThere) {
    uint32_t count = 0;
    SH_OK_OR_END(backend().probe(&count));
    sh_backend_device* other = nullptr;
    sh_backend_device_info other_info = {};
    SH_EXPECT_FAILURE(backend().device_open(count + 1000, nullptr, &other, &other_info));
    EXPECT_EQ(other, nullptr);
}

TEST_P(DeviceTest, TextOfAnErrorBelongsToItsThread) {
    sh_backend_device* other = nullptr;
    sh_backend_device_info other_info = {};
    EXPECT_LT(backend().device_open(GetParam().index, "first_key=1", &other, &other_info), 0);
    std::string before, after;
    std::thread([&] {
        ASSERT_NE(backend().last_error(), nullptr);
        before = backend().last_error();
        EXPECT_LT(backend().device_open(GetParam().index, "second_key=1", &other, &other_info), 0);
        after = backend().last_error();
    }).join();
    EXPECT_EQ(before.find("first_key"), std::string::npos) << before;
    EXPECT_NE(after.find("second_key"), std::string::npos) << after;
    EXPECT_NE(std::strstr(backend().last_error(), "first_key"), nullptr) << backend().last_error();
}

TEST_P(DeviceTest, ClockDoesNotGoBack) {
    if (!backend().clock) GTEST_SKIP() << "the host's clock is this device's";
    const sh_stream stream = new_stream();
    uint64_t last = backend().clock(device());
    for (int i = 0; i < 100; ++i) {
        SH_OK_OR_END(backend().stream_synchronize(device(), stream));
        const uint64_t now = backend().clock(device());
        EXPECT_GE(now, last);
        last = now;
    }
}

TEST_P(DeviceTest, ThreadsCanBePrepared) {
    if (!backend().thread_begin) GTEST_SKIP() << "threads need no preparation";
    std::thread([&] { SH_EXPECT_OK(backend().thread_begin(device())); }).join();
}

SH_ON_EVERY_BACKEND(DeviceTest);

}  // namespace
}  // namespace conformance
