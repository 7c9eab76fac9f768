// An engine that allocates memory by tags, on a device whose memory the test reads and writes itself.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <stagehand/stagehand.h>

#include "engine.h"
#include "host/host_backend.h"

namespace stagehand::test {

constexpr uint64_t kMiB = uint64_t(1) << 20;
constexpr uint64_t kPart = 2 * kMiB;  // what a pause compares, copies and leaves out as a whole

class OccupancyTest : public testing::Test {
protected:
    void open(const std::string& device_options = "capacity=64MiB;poison=1", uint64_t budget_bytes = 48 * kMiB,
              const char* name = "host") {
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.backend_options = device_options.c_str();
        options.budget_bytes = budget_bytes;
        options.link_bytes_per_second = 1'000'000'000;
        SUCCEEDS(sh_device_open(name, &options, &device_));
    }
    void TearDown() override {
        sh_device_close(device_);
        EXPECT_TRUE(host::all_memory_statistics().empty()) << "the device is still open";
    }

    sh_status try_alloc(uint64_t bytes, const char* tag, uint32_t contents, uint64_t* out) {
        sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
        options.tag = tag;
        options.contents = contents;
        return sh_alloc(device_, bytes, &options, out);
    }
    uint64_t alloc(uint64_t bytes, const char* tag = nullptr, uint32_t contents = SH_CONTENTS_DEFAULT) {
        uint64_t address = 0;
        EXPECT_SUCCEEDS(try_alloc(bytes, tag, contents, &address));
        return address;
    }
    sh_status pause(const std::vector<const char*>& tags = {}, uint32_t flags = 0,
                    uint32_t contents = SH_CONTENTS_DEFAULT, sh_occupancy_change* change = nullptr) {
        sh_pause_options options = SH_PAUSE_OPTIONS_INIT;
        options.tags = tags.data();
        options.tag_count = tags.size();
        options.flags = flags;
        options.contents = contents;
        return sh_pause(device_, &options, change);
    }
    sh_status resume(const std::vector<const char*>& tags = {}, uint32_t flags = 0,
                     sh_occupancy_change* change = nullptr) {
        sh_resume_options options = SH_RESUME_OPTIONS_INIT;
        options.tags = tags.data();
        options.tag_count = tags.size();
        options.flags = flags;
        return sh_resume(device_, &options, change);
    }
    sh_status prepare(const std::vector<const char*>& tags = {}, uint32_t flags = 0,
                      uint32_t contents = SH_CONTENTS_DEFAULT) {
        return pause(tags, flags | SH_OCCUPANCY_PREPARE, contents);
    }
    sh_occupancy_info info(const char* tag = nullptr) {
        auto info = sh_sized<sh_occupancy_info>();
        EXPECT_SUCCEEDS(sh_occupancy_get_info(device_, tag, &info));
        return info;
    }
    sh_memory_info memory() {
        auto info = sh_sized<sh_memory_info>();
        EXPECT_SUCCEEDS(sh_device_get_memory(device_, &info));
        return info;
    }
    static host::MemoryStatistics on_device() { return host::all_memory_statistics().at(0); }

    static void write(uint64_t address, const std::vector<uint8_t>& bytes) {
        std::memcpy(reinterpret_cast<void*>(address), bytes.data(), bytes.size());
    }
    static std::vector<uint8_t> read(uint64_t address, uint64_t bytes) {
        const auto* const begin = reinterpret_cast<const uint8_t*>(address);
        return {begin, begin + bytes};
    }
    static std::vector<uint8_t> contents(uint64_t seed, uint64_t bytes) { return contents_of(seed, 1, bytes); }
    // Memory whose contents tell which memory it is.
    uint64_t filled(uint64_t seed, uint64_t bytes, const char* tag = nullptr, uint32_t mode = SH_CONTENTS_DEFAULT) {
        const uint64_t address = alloc(bytes, tag, mode);
        if (address) write(address, contents(seed, bytes));
        return address;
    }

    sh_device* device_ = nullptr;
};

class PausingTest : public OccupancyTest {
protected:
    void SetUp() override {
        if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    }
};

}  // namespace stagehand::test
