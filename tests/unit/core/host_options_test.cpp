// The options of a device about host memory, about the processors of staging threads, and about device memory of the
// engine.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <dirent.h>
#include <sched.h>

#include "engine.h"

namespace stagehand::test {
namespace {

struct Options {
    sh_device_options device = SH_DEVICE_OPTIONS_INIT;
    sh_host_options host = SH_HOST_OPTIONS_INIT;
};

Options host_options() {
    Options options;
    options.device.budget_bytes = 32 << 12;
    options.device.page_bytes = 4096;
    options.host.staging_threads = 2;
    options.device.backend_options = "capacity=256MiB;staging_piece=16KiB;poison=1";
    return options;
}

// An engine's own allocator. It fills what it gives with rubbish.
class Arena {
public:
    static void* allocate(uint64_t bytes, void* user_data) {
        Arena& arena = *static_cast<Arena*>(user_data);
        const std::lock_guard lock(arena.mutex_);
        if (bytes > arena.most) return nullptr;
        void* const memory = std::aligned_alloc(4096, bytes);
        std::memset(memory, 0xee, bytes);
        arena.given_[memory] = bytes;
        arena.total += bytes;
        return static_cast<char*>(memory) + arena.skew;
    }
    static void free(void* memory, uint64_t bytes, void* user_data) {
        Arena& arena = *static_cast<Arena*>(user_data);
        const std::lock_guard lock(arena.mutex_);
        void* const begin = static_cast<char*>(memory) - arena.skew;
        const auto found = arena.given_.find(begin);
        ASSERT_TRUE(found != arena.given_.end() && found->second == bytes);
        arena.given_.erase(found);
        std::free(begin);
    }
    bool owns(const void* memory) {
        const std::lock_guard lock(mutex_);
        return std::ranges::any_of(given_, [&](const auto& each) {
            return memory >= each.first && memory < static_cast<const char*>(each.first) + each.second;
        });
    }
    size_t given() {
        const std::lock_guard lock(mutex_);
        return given_.size();
    }

    uint64_t most = UINT64_MAX, total = 0;
    size_t skew = 0;

private:
    std::mutex mutex_;
    std::map<void*, uint64_t> given_;
};

Options options_with(Arena& arena) {
    Options options = host_options();
    options.host.alloc = Arena::allocate;
    options.host.free = Arena::free;
    options.host.user_data = &arena;
    return options;
}

sh_status open(const Options& options, sh_device** out) {
    sh_device_options device = options.device;
    device.host = &options.host;
    return sh_device_open("host:0", &device, out);
}

// Streams pageable blocks on the device, which pass through the staging buffers, and compares them. They must lie in
// `within`, if it is not empty.
void stream_some(sh_device* device, std::span<const uint8_t> within = {}) {
    sh_runtime* runtime = nullptr;
    SUCCEEDS(sh_runtime_create(device, nullptr, &runtime));
    std::vector<std::vector<uint8_t>> contents;
    std::vector<sh_block> blocks(12);
    for (size_t i = 0; i < blocks.size(); i++) {
        contents.push_back(contents_of(i, 0, 20'000 + i));
        sh_segment segment = memory_segment(contents[i].data(), contents[i].size());
        blocks[i] = register_block(runtime, segment);
    }
    for (int step = 0; step < 3; step++) {
        SUCCEEDS(sh_step_begin(runtime, nullptr));
        for (size_t i = 0; i < blocks.size(); i++) {
            sh_view view = held_view(runtime, blocks[i]);
            EXPECT_EQ(std::memcmp(view.address, contents[i].data(), contents[i].size()), 0);
            const auto* const at = static_cast<const uint8_t*>(view.address);
            EXPECT_TRUE(within.empty() || (at >= within.data() && at + view.bytes <= within.data() + within.size()));
            let_go(runtime, blocks[i]);
        }
        SUCCEEDS(sh_step_end(runtime));
    }
    sh_runtime_destroy(runtime);
}

class HostOptions : public ::testing::Test {
protected:
    void SetUp() override {
        if (!on_host_backend() || devices_without_pages()) GTEST_SKIP() << "for the host's memory, with pages";
    }
};

TEST_F(HostOptions, TheEnginesAllocatorGivesAllHostMemory) {
    for (const uint32_t flags : {uint32_t(0), uint32_t(SH_HOST_PINNED)}) {
        Arena arena;
        Options options = options_with(arena);
        options.host.flags = flags;
        sh_device* device = nullptr;
        SUCCEEDS(open(options, &device));
        void* memory = nullptr;
        uint32_t pinned = 0;
        SUCCEEDS(sh_host_alloc(device, 10'000, &memory, &pinned));
        EXPECT_TRUE(arena.owns(memory));
        EXPECT_EQ(pinned, 1u);
        EXPECT_TRUE(std::all_of(static_cast<char*>(memory), static_cast<char*>(memory) + 10'000,
                                [](char byte) { return byte == 0; }));
        stream_some(device);
        EXPECT_GE(arena.given(), 2u) << "the staging buffers come from it, too";
        arena.most = 1 << 20;
        void* more = nullptr;
        EXPECT_REFUSED(sh_host_alloc(device, 2 << 20, &more, nullptr), SH_ERROR_OUT_OF_HOST_MEMORY, "host_alloc");
        SUCCEEDS(sh_host_free(device, memory));
        sh_device_close(device);
        EXPECT_EQ(arena.given(), 0u);
        EXPECT_GT(arena.total, 10'000u);
    }
}

TEST_F(HostOptions, TheEnginesAllocatorKeepsReleasedContents) {
    constexpr uint64_t kBytes = 8 * 4096;
    Arena arena;
    Options options = options_with(arena);
    sh_device* device = nullptr;
    SUCCEEDS(open(options, &device));
    uint64_t address = 0;
    SUCCEEDS(sh_alloc(device, kBytes, nullptr, &address));
    const std::vector<uint8_t> contents = contents_of(1, 0, kBytes);
    auto* const at = reinterpret_cast<uint8_t*>(address);
    std::copy(contents.begin(), contents.end(), at);
    SUCCEEDS(sh_pause(device, nullptr, nullptr));
    EXPECT_GE(arena.total, kBytes);
    EXPECT_GE(arena.given(), 1u);
    SUCCEEDS(sh_resume(device, nullptr, nullptr));
    EXPECT_TRUE(std::equal(contents.begin(), contents.end(), at));
    SUCCEEDS(sh_free(device, address));
    sh_device_close(device);
    EXPECT_EQ(arena.given(), 0u);
}

// Whether the kernel was told to use small pages at this address.
bool has_small_pages(const void* address) {
    std::ifstream maps("/proc/self/smaps");
    bool inside = false;
    for (std::string line; std::getline(maps, line);) {
        unsigned long begin = 0, end = 0;
        if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
            inside = reinterpret_cast<uintptr_t>(address) >= begin && reinterpret_cast<uintptr_t>(address) < end;
        else if (inside && line.starts_with("VmFlags:"))
            return line.find(" nh") != std::string::npos;
    }
    return false;
}

TEST_F(HostOptions, PagesOfHostMemoryAreSmallIfTheEngineWantsThat) {
    for (const uint32_t flags : {uint32_t(0), uint32_t(SH_HOST_SMALL_PAGES)}) {
        Options options = host_options();
        options.host.flags = flags;
        sh_device* device = nullptr;
        void* memory = nullptr;
        SUCCEEDS(open(options, &device));
        SUCCEEDS(sh_host_alloc(device, 4 << 20, &memory, nullptr));
        EXPECT_EQ(has_small_pages(memory), flags != 0);
        SUCCEEDS(sh_host_free(device, memory));
        sh_device_close(device);
    }
}

TEST_F(HostOptions, MemoryThatDoesNotBeginAtAPageIsGivenBack) {
    Arena arena;
    Options options = options_with(arena);
    sh_device* device = nullptr;
    SUCCEEDS(open(options, &device));
    arena.skew = 64;
    void* memory = nullptr;
    EXPECT_REFUSED(sh_host_alloc(device, 4096, &memory, nullptr), SH_ERROR_CALLBACK, "page");
    sh_device_close(device);
    EXPECT_EQ(arena.given(), 0u);
}

// The processors of each thread of this process with that name.
std::vector<cpu_set_t> processors_of(const std::string& name) {
    std::vector<cpu_set_t> found;
    DIR* const tasks = opendir("/proc/self/task");
    while (const dirent* const task = readdir(tasks)) {
        std::string called;
        std::ifstream file(std::string("/proc/self/task/") + task->d_name + "/comm");
        cpu_set_t set;
        if (std::getline(file, called) && called == name &&
            sched_getaffinity(std::atoi(task->d_name), sizeof set, &set) == 0)
            found.push_back(set);
    }
    closedir(tasks);
    return found;
}

TEST_F(HostOptions, StagingThreadsRunWhereTheyAreToldTo) {
    cpu_set_t mine;
    ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
    int last = CPU_SETSIZE - 1;
    while (!CPU_ISSET(last, &mine)) last--;
    const std::string cpus = std::to_string(last);
    Options options = host_options();
    options.host.staging_cpus = cpus.c_str();
    sh_device* device = nullptr;
    SUCCEEDS(open(options, &device));
    stream_some(device);
    const std::vector<cpu_set_t> threads = processors_of("sh-staging");
    ASSERT_EQ(threads.size(), 2u);
    for (const cpu_set_t& set : threads) {
        EXPECT_EQ(CPU_COUNT(&set), 1);
        EXPECT_TRUE(CPU_ISSET(last, &set));
    }
    sh_device_close(device);
}

TEST_F(HostOptions, ProcessorsThatAreNotThereOnlyCostAWarning) {
    Options options = host_options();
    options.host.staging_cpus = "1023";
    sh_device* device = nullptr;
    SUCCEEDS(open(options, &device));
    stream_some(device);
    sh_device_close(device);
}

TEST_F(HostOptions, DeviceMemoryOfTheEngineIsTheDevice) {
    constexpr uint64_t kBytes = 300'000 / 256 * 256;
    alignas(256) static uint8_t memory[kBytes];
    Options options = host_options();
    options.device.budget_bytes = 0;
    options.device.device_memory = memory;
    options.device.device_memory_bytes = kBytes;
    sh_device* device = nullptr;
    SUCCEEDS(open(options, &device));
    auto caps = sh_sized<sh_device_caps>();
    SUCCEEDS(sh_device_get_caps(device, &caps));
    EXPECT_FALSE(caps.flags & SH_DEVICE_FIXED_ADDRESSES);
    auto info = sh_sized<sh_memory_info>();
    SUCCEEDS(sh_device_get_memory(device, &info));
    EXPECT_EQ(info.total_bytes, kBytes);
    EXPECT_LT(info.budget_bytes, kBytes);
    stream_some(device, memory);
    sh_device_close(device);
    options.device.backend_options = "map_pages=0";
    SUCCEEDS(open(options, &device));
    sh_device_close(device);
}

}  // namespace
}  // namespace stagehand::test
