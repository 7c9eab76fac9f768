// Options of the host backend: what they do, and how bad ones are refused.
#include <gtest/gtest.h>

#include <cstring>

#include "host/host_backend.h"
#include "host/settings.h"
#include "platform/host_memory.h"

namespace stagehand::host {
namespace {

sh_status open_and_close(const char* options, sh_backend_device_info* info) {
    sh_backend_device* device = nullptr;
    const sh_status status = host_backend()->device_open(0, options, &device, info);
    if (status >= 0) host_backend()->device_close(device);
    return status;
}

TEST(HostOptions, DescribeTheDevice) {
    sh_backend_device_info info = {};
    ASSERT_EQ(open_and_close("capacity=100MiB;granularity=64KiB;bandwidth=8GB/s;latency=7us;staging_piece=1MiB", &info),
              SH_OK)
        << host_backend()->last_error();
    EXPECT_EQ(info.total_bytes, 100u << 20);
    EXPECT_EQ(info.granularity_bytes, 65536u);
    EXPECT_EQ(info.link_bytes_per_second, 8000000000u);
    EXPECT_EQ(info.copy_latency_ns, 7000u);
    EXPECT_EQ(info.staging_piece_bytes, 1u << 20);
    EXPECT_EQ(info.flags, uint32_t(SH_BACKEND_FIXED_ADDRESSES | SH_BACKEND_HOST_ADDRESSABLE | SH_BACKEND_PEERS));
}

TEST(HostOptions, WithoutPagesAddressesComeWithTheirMemory) {
    const sh_backend& backend = *host_backend();
    sh_backend_device* device = nullptr;
    sh_backend_device_info info = {};
    ASSERT_EQ(backend.device_open(0, "map_pages=0;capacity=1MiB;granularity=64KiB;poison=1", &device, &info), SH_OK);
    EXPECT_EQ(info.flags, uint32_t(SH_BACKEND_HOST_ADDRESSABLE | SH_BACKEND_PEERS));
    uint64_t address = 0, other = 0;
    ASSERT_EQ(backend.range_reserve(device, 640 << 10, 64 << 10, &address), SH_OK) << backend.last_error();
    EXPECT_EQ(address % (64 << 10), 0u);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(address);
    EXPECT_EQ(bytes[0], kPoison);
    EXPECT_EQ(bytes[(640 << 10) - 1], kPoison);
    EXPECT_EQ(memory_statistics(device).current_bytes, 640u << 10);
    EXPECT_EQ(backend.range_reserve(device, 448 << 10, 64 << 10, &other), SH_ERROR_OUT_OF_DEVICE_MEMORY);
    EXPECT_EQ(backend.range_reserve(device, 1000, 64 << 10, &other), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(other, 0u);
    EXPECT_EQ(backend.range_free(device, address, 64 << 10), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(backend.range_free(device, address + (64 << 10), 640 << 10), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(bytes[0], kPoison) << "what was refused has changed something";
    sh_backend_page page = 0;
    EXPECT_EQ(backend.pages_create(device, 64 << 10, 1, &page), SH_ERROR_UNSUPPORTED);
    EXPECT_NE(std::strstr(backend.last_error(), "map_pages"), nullptr);
    EXPECT_EQ(backend.range_free(device, address, 640 << 10), SH_OK) << backend.last_error();
    EXPECT_EQ(backend.range_free(device, address, 640 << 10), SH_ERROR_INVALID_ARGUMENT);
    const MemoryStatistics left = memory_statistics(device);
    EXPECT_EQ(left.current_bytes + left.mapped_bytes + left.file_bytes + left.pages, 0u);
    backend.device_close(device);
}

TEST(HostOptions, DefaultsFitTheMachine) {
    sh_backend_device_info info = {};
    ASSERT_EQ(open_and_close(nullptr, &info), SH_OK);
    EXPECT_EQ(info.granularity_bytes, 4096u);
    EXPECT_EQ(info.total_bytes, platform::read_host_memory().limit_bytes / 2 / 4096 * 4096);
    EXPECT_EQ(info.link_bytes_per_second, 0u) << "it is not known without measuring";
}

TEST(HostOptions, CapacityIsRoundedDownToPages) {
    sh_backend_device_info info = {};
    ASSERT_EQ(open_and_close("capacity=10000", &info), SH_OK);
    EXPECT_EQ(info.total_bytes, 8192u);
}

TEST(HostOptions, BadOnesAreRefusedByName) {
    const char* const bad[][2] = {
        {"capacity=many", "capacity"},
        {"capacity=100", "capacity"},
        {"granularity=1000", "granularity"},
        {"granularity=512", "granularity"},
        {"granularity=2GiB", "granularity"},
        {"page=3", "granularity"},
        {"bandwidth=fast", "bandwidth"},
        {"latency=1 day", "latency"},
        {"poison=2", "poison"},
        {"map_pages=yes", "map_pages"},
        {"staging_piece=0", "staging_piece"},
        {"pin_limit=-1", "pin_limit"},
        {"jitter_us=x", "jitter_us"},
        {"jitter_seed=x", "jitter_seed"},
        {"speed=3", "speed"},
        {"poison", "poison"},
        {"page=4096;granularity=4096", "options granularity and page are the same: give one of them"},
        {"bandwidth=1", "option bandwidth: '1' is not 0, nor from 1MB/s to 1000TB/s"},
        {"bandwidth=1e16", "option bandwidth: '1e16' is not 0, nor from"},
        {"largest_handle=3MiB", "option largest_handle: 3145728 is neither 0 nor a power of two from 2097152 to 1 GiB"},
        {"largest_handle=1MiB", "option largest_handle: 1048576 is neither"},
        {"largest_handle=2GiB", "option largest_handle: 2147483648 is neither"},
        {"granularity=4MiB;largest_handle=2MiB", "a power of two from 4194304 to 1 GiB"},
        {"latency=61s", "option latency: 61000000000 ns is more than a minute"},
    };
    for (const auto& [options, word] : bad) {
        sh_backend_device_info info = {};
        EXPECT_EQ(open_and_close(options, &info), SH_ERROR_INVALID_ARGUMENT) << options;
        EXPECT_NE(std::strstr(host_backend()->last_error(), word), nullptr)
            << options << ": " << host_backend()->last_error();
        EXPECT_EQ(info.struct_size, 0u) << "written in spite of the failure";
    }
}

TEST(HostOptions, ZeroIsTheDefaultWhereItMeansNothingElse) {
    sh_backend_device_info info = {};
    ASSERT_EQ(open_and_close("pin_limit=0;bandwidth=0;largest_handle=0;granularity=0;capacity=0", &info), SH_OK)
        << host_backend()->last_error();
    EXPECT_EQ(info.link_bytes_per_second, 0u);
    EXPECT_EQ(info.granularity_bytes, 4096u);
    EXPECT_GT(info.total_bytes, 0u);
}

TEST(HostOptions, RegistrationStopsAtThePinLimit) {
    const sh_backend& backend = *host_backend();
    sh_backend_device* device = nullptr;
    sh_backend_device_info info = {};
    ASSERT_EQ(backend.device_open(0, "pin_limit=64KiB", &device, &info), SH_OK);
    alignas(4096) static char memory[128 << 10];
    EXPECT_EQ(backend.host_register(device, memory, 128 << 10), SH_ERROR_OUT_OF_HOST_MEMORY);
    EXPECT_EQ(backend.host_register(device, memory, 64 << 10), SH_OK);
    EXPECT_EQ(backend.host_register(device, memory + (64 << 10), 1), SH_ERROR_OUT_OF_HOST_MEMORY);
    EXPECT_EQ(memory_statistics(device).pinned_bytes, 64u << 10);
    EXPECT_EQ(backend.host_unregister(device, memory), SH_OK);
    EXPECT_EQ(backend.host_register(device, reinterpret_cast<void*>(8192), 4096), SH_ERROR_INVALID_ARGUMENT)
        << "nothing is mapped there";
    EXPECT_EQ(memory_statistics(device).pinned_bytes, 0u);
    backend.device_close(device);
}

}  // namespace
}  // namespace stagehand::host
