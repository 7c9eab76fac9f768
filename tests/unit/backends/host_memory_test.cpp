// Memory of the host backend: it is real memory, it is counted, and the system gets it back.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "../count_allocations.h"
#include "host/host_backend.h"
#include "host/settings.h"
#include "page.h"

namespace stagehand::host {
namespace {

class HostMemory : public testing::Test {
protected:
    void SetUp() override { open("capacity=64MiB"); }
    void TearDown() override { backend_.device_close(device_); }

    void open(const char* options) {
        if (device_) backend_.device_close(device_);
        sh_backend_device_info info = {};
        ASSERT_EQ(backend_.device_open(0, options, &device_, &info), SH_OK) << backend_.last_error();
    }
    std::vector<sh_backend_page> create(uint64_t count, uint64_t page_bytes = kPage) {
        std::vector<sh_backend_page> pages(count);
        EXPECT_EQ(backend_.pages_create(device_, page_bytes, count, pages.data()), SH_OK) << backend_.last_error();
        return pages;
    }
    uint64_t reserve(uint64_t bytes) {
        uint64_t address = 0;
        EXPECT_EQ(backend_.range_reserve(device_, bytes, kPage, &address), SH_OK) << backend_.last_error();
        return address;
    }
    MemoryStatistics statistics() { return memory_statistics(device_); }

    const sh_backend& backend_ = *host_backend();
    sh_backend_device* device_ = nullptr;
};

// Returns the mappings of this process that touch [begin, end): their number and their rights.
std::vector<std::string> mappings(uint64_t begin, uint64_t end) {
    std::vector<std::string> rights;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        uint64_t first = 0, last = 0;
        char flags[8] = {};
        if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %7s", &first, &last, flags) != 3) continue;
        if (first < end && last > begin) rights.push_back(flags);
    }
    return rights;
}

TEST_F(HostMemory, CapacityIsAWall) {
    const auto half = create(8192);
    std::vector<sh_backend_page> more(8193);
    EXPECT_EQ(backend_.pages_create(device_, kPage, 8193, more.data()), SH_ERROR_OUT_OF_DEVICE_MEMORY);
    EXPECT_STREQ(backend_.last_error(), "33558528 bytes are needed, but only 33554432 are free of 67108864");
    EXPECT_EQ(statistics().current_bytes, 8192 * kPage);
    EXPECT_EQ(statistics().peak_bytes, 8192 * kPage);
    EXPECT_EQ(backend_.pages_create(device_, kPage, 8192, more.data()), SH_OK);
    sh_backend_page one = 0;
    EXPECT_EQ(backend_.pages_create(device_, kPage, 1, &one), SH_ERROR_OUT_OF_DEVICE_MEMORY);
    ASSERT_EQ(backend_.pages_destroy(device_, kPage, 1, half.data() + 4000), SH_OK);
    EXPECT_EQ(backend_.pages_create(device_, kPage, 1, &one), SH_OK);
    EXPECT_EQ(statistics().peak_bytes, 64u << 20);
}

// The allocator builds a run from single free pages that are far apart, so that one call can map it.
TEST_F(HostMemory, FragmentedMemoryGivesWholeRuns) {
    const auto pages = create(16384);
    std::vector<sh_backend_page> every_other;
    for (size_t i = 0; i < pages.size(); i += 2) every_other.push_back(pages[i]);
    ASSERT_EQ(backend_.pages_destroy(device_, kPage, every_other.size(), every_other.data()), SH_OK);
    const auto run = create(8192);
    for (size_t i = 1; i < run.size(); ++i) ASSERT_EQ(run[i], run[0] + i);
    EXPECT_EQ(statistics().file_bytes, 64u << 20);
}

TEST_F(HostMemory, NewPagesArePoisonedIfAsked) {
    open("capacity=16MiB;poison=1");
    const uint64_t range = reserve(600 * kPage);
    for (int round = 0; round < 2; ++round) {
        const auto pages = create(600);
        ASSERT_EQ(backend_.pages_map(device_, range, kPage, 600, pages.data()), SH_OK);
        auto* const bytes = reinterpret_cast<uint8_t*>(range);
        EXPECT_EQ(std::vector<uint8_t>(bytes, bytes + 600 * kPage), std::vector<uint8_t>(600 * kPage, kPoison));
        std::memset(bytes, 1, 600 * kPage);
        ASSERT_EQ(backend_.pages_unmap(device_, range, kPage, 600), SH_OK);
        ASSERT_EQ(backend_.pages_destroy(device_, kPage, 600, pages.data()), SH_OK);
    }
}

// A process can have 65,530 mappings. More pages than that do not fit if no two of them are neighbours.
TEST_F(HostMemory, TooManyMappingsAreAnErrorThatIsTakenBack) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the sanitizer itself ends the process when it cannot map memory";
#endif
    std::ifstream limit_file("/proc/sys/vm/max_map_count");
    uint64_t limit = 0;
    limit_file >> limit;
    if (limit == 0 || limit > 200000) GTEST_SKIP() << "this system allows " << limit << " mappings";
    open("capacity=2GiB");
    const uint64_t count = limit + 1000;
    auto pages = create(count);
    for (uint64_t i = 0; i + 1 < count; i += 2) std::swap(pages[i], pages[i + 1]);  // no two pages are neighbours
    const uint64_t range = reserve(count * kPage);
    EXPECT_EQ(backend_.pages_map(device_, range, kPage, count, pages.data()), SH_ERROR_OUT_OF_HOST_MEMORY);
    EXPECT_NE(std::strstr(backend_.last_error(), "max_map_count"), nullptr) << backend_.last_error();
    EXPECT_EQ(mappings(range, range + count * kPage), std::vector<std::string>{"---p"});
    EXPECT_EQ(statistics().mapped_bytes, 0u);
    EXPECT_EQ(backend_.pages_map(device_, range, kPage, 1000, pages.data()), SH_OK);
}

TEST_F(HostMemory, ClosingGivesEverythingBack) {
    const auto pages = create(10);
    const uint64_t range = reserve(10 * kPage);
    ASSERT_EQ(backend_.pages_map(device_, range, kPage, 10, pages.data()), SH_OK);
    const size_t open_devices = all_memory_statistics().size();
    backend_.device_close(device_);
    device_ = nullptr;
    // The process may use the addresses for its own memory by now.
    const auto left = mappings(range, range + 10 * kPage);
    EXPECT_EQ(std::count(left.begin(), left.end(), "rw-s") + std::count(left.begin(), left.end(), "---p"), 0);
    EXPECT_EQ(all_memory_statistics().size(), open_devices - 1);
    open(nullptr);
}

TEST_F(HostMemory, FilesThatMayNotGrowAreAnError) {
    rlimit before = {}, small = {};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = {1 << 20, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    std::vector<sh_backend_page> pages(512);
    EXPECT_EQ(backend_.pages_create(device_, kPage, 512, pages.data()), SH_ERROR_BACKEND);
    EXPECT_NE(std::strstr(backend_.last_error(), "RLIMIT_FSIZE"), nullptr) << backend_.last_error();
    EXPECT_EQ(backend_.pages_create(device_, kPage, 100, pages.data()), SH_OK) << backend_.last_error();
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(statistics().current_bytes, 100 * kPage);
}

}  // namespace
}  // namespace stagehand::host
