#include "device_under_test.h"

#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

#include <stagehand/stagehand.h>

#include "device_bytes.h"
#include "engine.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kLargestBlock = 12;  // of all tests, in pages
constexpr int kSkipped = 77;            // how a program says that it cannot run here

// Runs no tests if the requested device is not there.
class DeviceUnderTest : public testing::Environment {
public:
    void SetUp() override {
        if (on_host_backend()) return;
        const std::string name = device_under_test();
        const uint64_t smallest_page = smallest_page_of_device_under_test(devices_without_pages());
        if (!smallest_page) {
            std::printf("%s: %s\n", name.c_str(), why().c_str());
            std::exit(kSkipped);
        }
        ASSERT_LE(smallest_page, kPage) << "STAGEHAND_TEST_PAGE_BYTES is less than a page of this device";
        const size_t colon = name.find(':');
        reach_gpu_memory(colon == std::string::npos ? 0 : std::atoi(name.c_str() + colon + 1), kLargestBlock * kPage);
    }
};
[[maybe_unused]] const testing::Environment* const device_environment =
    testing::AddGlobalTestEnvironment(new DeviceUnderTest);

}  // namespace

std::string device_under_test() {
    const char* const name = std::getenv("STAGEHAND_TEST_DEVICE");
    return name && *name ? name : "host";
}

bool on_host_backend() { return device_under_test() == "host"; }

bool devices_without_pages() {
    const char* const variable = std::getenv("STAGEHAND_TEST_NO_PAGES");
    return variable && std::string(variable) == "1";
}

uint64_t smallest_page_of_device_under_test(bool no_pages) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.backend_options = no_pages ? "map_pages=0" : nullptr;
    sh_device* device = nullptr;
    if (sh_device_open(device_under_test().c_str(), &options, &device) != SH_OK) return 0;
    auto caps = sh_sized<sh_device_caps>();
    EXPECT_SUCCEEDS(sh_device_get_caps(device, &caps));
    sh_device_close(device);
    return caps.granularity_bytes;
}

uint64_t page_of_device_under_test() {
    const char* const bytes = std::getenv("STAGEHAND_TEST_PAGE_BYTES");
    if (on_host_backend()) return 4096;
    return bytes ? std::strtoull(bytes, nullptr, 10) : uint64_t(2) << 20;
}

}  // namespace stagehand::test
