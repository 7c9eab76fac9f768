// Contents that are read while their tag is released.
#include <filesystem>
#include <map>

#include <sys/stat.h>
#include <unistd.h>

#include "occupancy_fixture.h"

namespace stagehand::test {
namespace {

class OccupancyRead : public PausingTest {
protected:
    std::vector<uint8_t> away(uint64_t address, uint64_t bytes) {
        std::vector<uint8_t> read(bytes, 0xEE);
        EXPECT_SUCCEEDS(sh_occupancy_read(device_, address, bytes, read.data()));
        return read;
    }
    static void expect_refused(sh_status status, sh_status expected, const std::string& text) {
        EXPECT_EQ(status, expected) << why();
        EXPECT_NE(why().find(text), std::string::npos) << why();
    }
    sh_status status_at(uint64_t address, uint64_t bytes) {
        std::vector<uint8_t> read(bytes);
        return sh_occupancy_read(device_, address, bytes, read.data());
    }
};

std::vector<uint8_t> part_of(const std::vector<uint8_t>& all, uint64_t offset, uint64_t bytes) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(offset);
    return {begin, begin + static_cast<std::ptrdiff_t>(bytes)};
}

TEST_F(OccupancyRead, AnyRangeOfAnAllocation) {
    open("capacity=64MiB;granularity=64KiB;poison=1");
    constexpr uint64_t kBytes = 3 * kPart + 65536 + 100;
    const uint64_t address = filled(1, kBytes, "weights"), small = filled(2, 700, "weights");
    const std::vector<uint8_t> truth = contents(1, kBytes);
    for (int cycle = 0; cycle < 2; cycle++) {
        SUCCEEDS(pause({"weights"}));
        EXPECT_EQ(away(address, kBytes), truth);
        EXPECT_EQ(away(address + kPart - 3, 2 * kPart), part_of(truth, kPart - 3, 2 * kPart));
        EXPECT_EQ(away(address + kBytes - 1, 1), part_of(truth, kBytes - 1, 1));
        EXPECT_EQ(away(small, 700), contents(2, 700));
        SUCCEEDS(resume({"weights"}));
    }
    EXPECT_EQ(read(address, kBytes), truth);
}

TEST_F(OccupancyRead, WhatHostMemoryDoesNotKeepIsZero) {
    open();
    const uint64_t zero = filled(1, kPart, "zero", SH_CONTENTS_ZERO), stage = filled(2, 3 * kPart);
    const sh_memory_range unused = {stage + kPart, kPart};
    sh_pause_options options = SH_PAUSE_OPTIONS_INIT;
    options.unused = &unused;
    options.unused_count = 1;
    SUCCEEDS(sh_pause(device_, &options, nullptr));
    const std::vector<uint8_t> truth = contents(2, 3 * kPart), nothing(kPart);
    EXPECT_EQ(away(zero, kPart), nothing);
    EXPECT_EQ(away(stage, kPart), part_of(truth, 0, kPart));
    EXPECT_EQ(away(stage + kPart, kPart), nothing);
    EXPECT_EQ(away(stage + 2 * kPart, kPart), part_of(truth, 2 * kPart, kPart));
    SUCCEEDS(resume());
}

TEST_F(OccupancyRead, ContentsInAFile) {
    open("capacity=64MiB;granularity=64KiB;poison=1");
    constexpr uint64_t kBytes = 3 * kPart + 65536 + 100;
    const uint64_t address = filled(1, kBytes, "weights", SH_CONTENTS_FILE);
    const std::vector<uint8_t> truth = contents(1, kBytes);
    SUCCEEDS(pause({"weights"}));
    ASSERT_NE(info("weights").file_bytes, 0u);
    EXPECT_EQ(away(address, kBytes), truth);
    EXPECT_EQ(away(address + kPart - 4097, 2 * kPart), part_of(truth, kPart - 4097, 2 * kPart));
    EXPECT_EQ(away(address + kBytes - 1, 1), part_of(truth, kBytes - 1, 1));
    SUCCEEDS(resume({"weights"}));
    EXPECT_EQ(read(address, kBytes), truth);
}

// The files of the process that have no name, as those of contents.
std::map<ino_t, int> files_without_names() {
    std::map<ino_t, int> files;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        const int file = std::stoi(entry.path().filename().string());
        struct stat found = {};
        if (fstat(file, &found) == 0 && S_ISREG(found.st_mode) && found.st_nlink == 0) files[found.st_ino] = file;
    }
    return files;
}

TEST_F(OccupancyRead, AFileThatHasLostItsBytesIsAnError) {
    open();
    const uint64_t address = filled(1, kPart, "weights", SH_CONTENTS_FILE);
    const std::map<ino_t, int> before = files_without_names();
    SUCCEEDS(pause({"weights"}));
    ASSERT_NE(info("weights").file_bytes, 0u);
    int cut = 0;
    for (const auto& [number, file] : files_without_names())
        if (!before.contains(number)) cut += ftruncate(file, 0) == 0;
    ASSERT_EQ(cut, 1);
    expect_refused(status_at(address, kPart), SH_ERROR_IO, "cannot be read");
}

TEST_F(OccupancyRead, ADeviceWithoutContents) {
    open("", 48 * kMiB, "sim");
    const uint64_t address = alloc(kPart);
    SUCCEEDS(pause());
    expect_refused(status_at(address, 1), SH_ERROR_UNSUPPORTED, "sim");
}

}  // namespace
}  // namespace stagehand::test
