// Allocations of torch_memory_saver's libraries, without Python and without CUDA: the host is the GPU.
#include "memory_saver.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace stagehand::test {
namespace {

constexpr uint64_t kMiB = uint64_t(1) << 20;

std::string error_text() {
    char text[300] = "";
    memory_saver::error_text(text, sizeof text);
    return text;
}

class MemorySaver : public testing::Test {
protected:
    void SetUp() override {
        memory_saver::set_backend("host");
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.backend_options = "capacity=64MiB;poison=1";
        options.budget_bytes = 48 * kMiB;
        ASSERT_EQ(sh_device_open("host", &options, &device_), SH_OK) << error_text();
        enter("default");
    }
    void TearDown() override {
        memory_saver::config().interesting = false;
        memory_saver::set_margin(0);
        sh_device_close(device_);
    }
    static void enter(const char* tag, bool backup = true) {
        memory_saver::config().interesting = true;
        memory_saver::config().cpu_backup = backup;
        std::snprintf(memory_saver::config().tag, sizeof memory_saver::Config::tag, "%s", tag);
    }
    static uint8_t* allocate(uint64_t bytes, int value) {
        void* memory = nullptr;
        EXPECT_EQ(memory_saver::allocate(bytes, 0, &memory), SH_OK) << error_text();
        if (memory) std::memset(memory, value, bytes);
        return static_cast<uint8_t*>(memory);
    }
    static void free(void* memory) {
        sh_status status = -1;
        EXPECT_TRUE(memory_saver::give_back(memory, &status));
        EXPECT_EQ(status, SH_OK) << error_text();
    }
    uint32_t state(const char* tag) {
        auto info = sh_sized<sh_occupancy_info>();
        EXPECT_EQ(sh_occupancy_get_info(device_, tag, &info), SH_OK);
        return info.state;
    }

    sh_device* device_ = nullptr;
};

bool is_all(const uint8_t* memory, int value, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i++)
        if (memory[i] != value) return false;
    return true;
}

TEST_F(MemorySaver, BackupsEndWithTheirPause) {
    uint8_t* const memory = allocate(2 * kMiB, 3);
    EXPECT_EQ(memory_saver::backup_of(memory, 100), nullptr);
    ASSERT_EQ(memory_saver::pause(nullptr, nullptr, 0), SH_OK);
    const uint8_t* const backup = memory_saver::backup_of(memory + 7, 100);
    ASSERT_NE(backup, nullptr);
    EXPECT_TRUE(is_all(backup, 3, 100));
    EXPECT_EQ(memory_saver::backup_of(memory + 7, 100), backup);
    EXPECT_EQ(memory_saver::backup_of(memory + 7, 2 * kMiB), nullptr);
    ASSERT_EQ(memory_saver::resume(""), SH_OK);
    EXPECT_EQ(memory_saver::backup_of(memory + 7, 100), nullptr);
    std::memset(memory, 4, 2 * kMiB);
    ASSERT_EQ(memory_saver::pause("default", nullptr, 0), SH_OK);
    EXPECT_TRUE(is_all(memory_saver::backup_of(memory + 7, 100), 4, 100));
    std::array<uint8_t, 9> read = {};
    EXPECT_EQ(memory_saver::read(memory, read.size(), read.data()), SH_OK);
    EXPECT_TRUE(is_all(read.data(), 4, read.size()));
    free(memory);
    EXPECT_EQ(memory_saver::read(memory, read.size(), read.data()), SH_NOT_READY);
}

TEST_F(MemorySaver, AFailureHasAText) {
    enter("cache", false);
    uint8_t* const memory = allocate(2 * kMiB, 3);
    void* none = memory;
    EXPECT_EQ(memory_saver::allocate(kMiB << 20, 0, &none), SH_ERROR_BUDGET);
    EXPECT_EQ(none, nullptr);
    EXPECT_NE(error_text().find("1.00 TiB"), std::string::npos) << error_text();
    memory_saver::set_margin(64 * kMiB);
    EXPECT_EQ(memory_saver::allocate(2 * kMiB, 0, &none), SH_ERROR_OUT_OF_DEVICE_MEMORY);
    EXPECT_NE(error_text().find("a margin of 67108864"), std::string::npos) << error_text();
    memory_saver::set_margin(0);
    enter("");
    EXPECT_EQ(memory_saver::allocate(100, 0, &none), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(memory_saver::resume("cache"), SH_ERROR_INVALID_STATE);
    EXPECT_NE(error_text().find("cache"), std::string::npos) << error_text();
    ASSERT_EQ(memory_saver::pause("cache", nullptr, 0), SH_OK);
    uint8_t byte = 0;
    EXPECT_EQ(memory_saver::read(memory, 1, &byte), SH_ERROR_NOT_FOUND);
    EXPECT_EQ(memory_saver::backup_of(memory, 1), nullptr);
    EXPECT_EQ(memory_saver::pause("of nothing", nullptr, 0), SH_OK);
    free(memory);
}

TEST_F(MemorySaver, UnusedRangesAreNotKept) {
    uint8_t* const memory = allocate(6 * kMiB, 3);
    const sh_memory_range unused = {uint64_t(reinterpret_cast<uintptr_t>(memory)) + 2 * kMiB, 4 * kMiB};
    ASSERT_EQ(memory_saver::pause(nullptr, &unused, 1), SH_OK);
    auto info = sh_sized<sh_occupancy_info>();
    EXPECT_EQ(sh_occupancy_get_info(device_, nullptr, &info), SH_OK);
    EXPECT_EQ(info.staged_bytes, 2 * kMiB);
    ASSERT_EQ(memory_saver::resume(nullptr), SH_OK);
    EXPECT_TRUE(is_all(memory, 3, 2 * kMiB));
    free(memory);
}

// A callback of a pause may allocate nothing, and a thread that reads backups meanwhile must not stop it.
int32_t allocates_before_a_pause(const char* const*, uint64_t, char*, uint64_t, void* refused) {
    void* memory = nullptr;
    *static_cast<bool*>(refused) = memory_saver::allocate(100, 0, &memory) < 0;
    return 0;
}

TEST_F(MemorySaver, ManyThreadsAtOnce) {
    uint8_t* const weights = allocate(2 * kMiB, 7);
    bool refused = false;
    ASSERT_EQ(sh_occupancy_add_callbacks(device_, allocates_before_a_pause, nullptr, &refused, nullptr), SH_OK);
    std::atomic<bool> ends{false};
    std::atomic<int> read_while_away{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; i++)
        threads.emplace_back([i, &ends] {
            enter(i == 0 ? "first" : "second");
            while (!ends) {
                void* memory = nullptr;
                const uint64_t bytes = i == 1 ? 3 * kMiB : 5000;
                if (memory_saver::allocate(bytes, 0, &memory) == SH_OK) free(memory);
            }
        });
    threads.emplace_back([&] {
        std::vector<uint8_t> read(kMiB);
        while (!ends) {
            const sh_status status = memory_saver::read(weights + 100, read.size(), read.data());
            EXPECT_GE(status, 0) << error_text();
            EXPECT_TRUE(status != SH_OK || is_all(read.data(), 7, read.size()));
            read_while_away += status == SH_OK;
            memory_saver::backup_of(weights, 1);  // the pointer may be old already
        }
    });
    for (int cycle = 0; cycle < 50 || (!read_while_away && cycle < 20000); cycle++) {
        ASSERT_EQ(memory_saver::pause("default", nullptr, 0), SH_OK) << error_text();
        ASSERT_EQ(memory_saver::resume("default"), SH_OK) << error_text();
    }
    ends = true;
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(refused && is_all(weights, 7, 2 * kMiB));
    EXPECT_GT(read_while_away, 0);
    EXPECT_EQ(memory_saver::pause(nullptr, nullptr, 0), SH_OK) << error_text();
    EXPECT_EQ(memory_saver::resume(nullptr), SH_OK) << error_text();
    EXPECT_EQ(state("default"), uint32_t(SH_OCCUPANCY_RUNNING));
    free(weights);
}

}  // namespace
}  // namespace stagehand::test
