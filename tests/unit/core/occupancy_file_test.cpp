// Contents that files keep, and contents that go through buffers because host memory is not pinned.
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "occupancy_fixture.h"

namespace stagehand::test {
namespace {

class OccupancyFile : public OccupancyTest {
protected:
    void SetUp() override {
        if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
        std::string name = testing::TempDir() + "stagehand-files-XXXXXX";
        ASSERT_TRUE(mkdtemp(name.data()));
        folder_ = name;
    }
    void TearDown() override {
        OccupancyTest::TearDown();
        if (!folder_.empty()) {
            EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "a file is left";
            std::filesystem::remove_all(folder_);
        }
    }
    sh_status pause_to(const std::string& folder, uint64_t host_bytes = 0, uint32_t contents = SH_CONTENTS_DEFAULT,
                       uint32_t flags = 0, sh_occupancy_change* change = nullptr) {
        sh_pause_options options = SH_PAUSE_OPTIONS_INIT;
        options.folder = folder.c_str();
        options.host_bytes = host_bytes;
        options.contents = contents;
        options.flags = flags;
        return sh_pause(device_, &options, change);
    }

    std::string folder_;
};

TEST_F(OccupancyFile, ContentsComeBackFromFiles) {
    open();
    const std::vector<uint64_t> sizes = {1, 700, 64'000, 2 * kMiB, 5 * kMiB + 4097, 21 * kMiB};
    std::vector<uint64_t> addresses;
    uint64_t held = 0;
    for (uint64_t i = 0; i < sizes.size(); i++)
        addresses.push_back(filled(i, sizes[i], i % 2 ? "a" : "b", SH_CONTENTS_FILE));
    const uint64_t memory = filled(9, 3 * kMiB);
    held = info("a").device_bytes + info("b").device_bytes;
    for (uint64_t cycle = 1; cycle <= 3; cycle++) {
        auto out = sh_sized<sh_occupancy_change>(), back = sh_sized<sh_occupancy_change>();
        SUCCEEDS(pause_to(folder_, 0, SH_CONTENTS_DEFAULT, 0, &out));
        EXPECT_EQ(on_device().current_bytes, 0u);
        EXPECT_EQ(info("a").host_bytes + info("b").host_bytes, 0u);
        EXPECT_EQ(info().file_bytes, held);
        EXPECT_EQ(info().host_bytes, 3 * kMiB);
        EXPECT_EQ(info("a").staged_bytes, info("a").file_bytes);
        back.unchanged_bytes = 777;
        SUCCEEDS(resume({}, 0, &back));
        EXPECT_EQ(back.unchanged_bytes, 0u) << "every field is written";
        EXPECT_EQ(back.copied_bytes, held + 3 * kMiB);
        EXPECT_EQ(read(memory, 3 * kMiB), contents(9, 3 * kMiB));
        for (uint64_t i = 0; i < sizes.size(); i++) {
            EXPECT_EQ(read(addresses[i], sizes[i]), contents(i + 10 * (cycle - 1), sizes[i])) << i;
            write(addresses[i], contents(i + 10 * cycle, sizes[i]));
        }
    }
    uint64_t freed = 0;
    SUCCEEDS(sh_occupancy_trim(device_, &freed));
    EXPECT_EQ(freed, 3 * kMiB);
    EXPECT_EQ(info().file_bytes, 0u);
    EXPECT_EQ(on_device().pinned_bytes, 0u);
}

TEST_F(OccupancyFile, WhatHasNotChangedStaysInItsFile) {
    open();
    const uint64_t address = filled(1, 8 * kMiB, "weights", SH_CONTENTS_FILE);
    auto change = sh_sized<sh_occupancy_change>();
    SUCCEEDS(pause_to(folder_));
    SUCCEEDS(resume());
    reinterpret_cast<uint8_t*>(address)[5 * kMiB] ^= 1;
    SUCCEEDS(pause_to(folder_, 0, SH_CONTENTS_DEFAULT, 0, &change));
    EXPECT_EQ(change.copied_bytes, kPart);
    EXPECT_EQ(change.unchanged_bytes, 8 * kMiB - kPart);
    SUCCEEDS(resume());
    std::vector<uint8_t> truth = contents(1, 8 * kMiB);
    truth[5 * kMiB] ^= 1;
    EXPECT_EQ(read(address, 8 * kMiB), truth);
}

TEST_F(OccupancyFile, WhatDoesNotFitIntoHostMemoryGoesToFiles) {
    open();
    const uint64_t first = filled(1, 4 * kMiB, "a"), second = filled(2, 6 * kMiB, "b");
    SUCCEEDS(pause_to(folder_, 5 * kMiB));
    EXPECT_EQ(info("a").host_bytes, 4 * kMiB);
    EXPECT_EQ(info("b").host_bytes, 0u);
    EXPECT_EQ(info("b").file_bytes, 6 * kMiB);
    SUCCEEDS(resume());
    EXPECT_EQ(read(first, 4 * kMiB), contents(1, 4 * kMiB));
    EXPECT_EQ(read(second, 6 * kMiB), contents(2, 6 * kMiB));
    // The next pause may say something else: all in files, and then all in host memory.
    SUCCEEDS(pause_to(folder_, 0, SH_CONTENTS_FILE));
    EXPECT_EQ(info().host_bytes, 0u);
    EXPECT_EQ(info().file_bytes, 10 * kMiB);
    SUCCEEDS(resume());
    SUCCEEDS(pause({}, 0, SH_CONTENTS_STAGE));
    EXPECT_EQ(info().host_bytes, 10 * kMiB);
    EXPECT_EQ(info().file_bytes, 0u);
    SUCCEEDS(resume());
    EXPECT_EQ(read(first, 4 * kMiB), contents(1, 4 * kMiB));
    EXPECT_EQ(read(second, 6 * kMiB), contents(2, 6 * kMiB));
}

TEST_F(OccupancyFile, AFolderWithoutRoomLeavesTheTagsRunning) {
    open();
    const uint64_t first = filled(1, 4 * kMiB, "a", SH_CONTENTS_FILE), second = filled(2, 4 * kMiB, "b");
    EXPECT_REFUSED(pause_to(folder_ + "/nothing"), SH_ERROR_IO, "/nothing");
    EXPECT_EQ(info().state, SH_OCCUPANCY_RUNNING + 0u);
    EXPECT_EQ(info().file_bytes + info().host_bytes, 0u);
    EXPECT_EQ(pause_to(""), SH_ERROR_INVALID_ARGUMENT);
    if (mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=2m") == 0) {
        EXPECT_REFUSED(pause_to(folder_), SH_ERROR_IO, "do not fit");
        EXPECT_EQ(info().state, SH_OCCUPANCY_RUNNING + 0u);
        EXPECT_EQ(umount(folder_.c_str()), 0);
    }
    EXPECT_EQ(read(first, 4 * kMiB), contents(1, 4 * kMiB));
    SUCCEEDS(pause_to(folder_));
    SUCCEEDS(resume());
    EXPECT_EQ(read(first, 4 * kMiB), contents(1, 4 * kMiB));
    EXPECT_EQ(read(second, 4 * kMiB), contents(2, 4 * kMiB));
}

// Descriptors are scarce: 1,024 for a process is usual.
class FewDescriptors {
public:
    explicit FewDescriptors(uint64_t more) {
        EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
        struct rlimit few = before_;
        few.rlim_cur = static_cast<rlim_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                                         std::filesystem::directory_iterator())) +
                       more;
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    }
    ~FewDescriptors() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
    FewDescriptors(const FewDescriptors&) = delete;
    FewDescriptors& operator=(const FewDescriptors&) = delete;

private:
    struct rlimit before_ = {};
};

// A process that was killed at the wrong moment may have left the name of its file.
TEST_F(OccupancyFile, FilesOfKilledProcessesAreRemoved) {
    open();
    const std::string stem = folder_ + "/stagehand-contents-";
    const std::string own = std::to_string(getpid());
    for (const std::string& name : {stem + "999999999-1-0", stem + own + "-1-0"}) std::ofstream(name) << "old";
    std::ofstream(folder_ + "/stagehand-contents-of-others") << "not ours";
    filled(1, 4 * kMiB, "a", SH_CONTENTS_FILE);
    SUCCEEDS(pause_to(folder_));
    EXPECT_FALSE(std::filesystem::exists(stem + "999999999-1-0"));
    EXPECT_FALSE(std::filesystem::exists(stem + own + "-1-0")) << "an older process of the same number";
    EXPECT_TRUE(std::filesystem::remove(folder_ + "/stagehand-contents-of-others"));
    SUCCEEDS(resume());
}

TEST_F(OccupancyFile, TheUsualFolderServesIfNoneIsNamed) {
    open();
    const char* const before = std::getenv("TMPDIR");
    const std::string kept = before ? before : "";
    setenv("TMPDIR", (folder_ + "/nowhere").c_str(), 1);
    const uint64_t address = filled(1, 4 * kMiB, "a", SH_CONTENTS_FILE);
    EXPECT_REFUSED(pause(), SH_ERROR_IO, "/nowhere");
    setenv("TMPDIR", folder_.c_str(), 1);
    SUCCEEDS(pause());
    SUCCEEDS(resume());
    before ? setenv("TMPDIR", kept.c_str(), 1) : unsetenv("TMPDIR");
    EXPECT_EQ(read(address, 4 * kMiB), contents(1, 4 * kMiB));
}

TEST_F(OccupancyFile, HostMemoryNeedNotBePinned) {
    open();
    const uint64_t first = filled(1, 20 * kMiB + 4096), second = filled(2, 700);
    for (int cycle = 0; cycle < 2; cycle++) {
        SUCCEEDS(pause_to(folder_, 0, SH_CONTENTS_DEFAULT, SH_OCCUPANCY_UNPINNED));
        EXPECT_EQ(info().pinned_bytes, 0u);
        EXPECT_GE(info().host_bytes, 20 * kMiB);
        EXPECT_EQ(info().file_bytes, 0u);
        SUCCEEDS(resume());
        EXPECT_EQ(read(first, 20 * kMiB + 4096), contents(1 + 10 * cycle, 20 * kMiB + 4096));
        EXPECT_EQ(read(second, 700), contents(2, 700));
        write(first, contents(11, 20 * kMiB + 4096));
    }
    SUCCEEDS(sh_occupancy_trim(device_, nullptr));
    SUCCEEDS(pause());
    EXPECT_EQ(info().pinned_bytes, info().host_bytes);
    SUCCEEDS(resume());
    EXPECT_EQ(read(first, 20 * kMiB + 4096), contents(11, 20 * kMiB + 4096));
}

}  // namespace
}  // namespace stagehand::test
