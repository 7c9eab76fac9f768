// A process that is killed in the middle of pauses and resumes leaves nothing that hinders the next one.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "occupancy_fixture.h"

namespace stagehand::test {
namespace {

constexpr char kFolder[] = "STAGEHAND_TEST_FOLDER", kReady[] = "STAGEHAND_TEST_READY";
constexpr int kKills = 12;

class OccupancyKilled : public OccupancyTest {
protected:
    // One tag whose contents files keep, and one with pinned memory.
    void open_with_contents() {
        open();
        file_ = filled(1, 9 * kMiB, "file", SH_CONTENTS_FILE);
        host_ = filled(2, 5 * kMiB, "host");
    }
    sh_status pause_to(const char* folder) {
        sh_pause_options options = SH_PAUSE_OPTIONS_INIT;
        options.folder = folder;
        return sh_pause(device_, &options, nullptr);
    }
    void cycle(const char* folder) {
        ASSERT_EQ(pause_to(folder), SH_OK) << why();
        ASSERT_EQ(resume(), SH_OK) << why();
        ASSERT_EQ(sh_occupancy_trim(device_, nullptr), SH_OK);  // so that each cycle makes a file
    }

    uint64_t file_ = 0, host_ = 0;
};

// Only the next test starts it, in a process of its own, which it kills.
TEST_F(OccupancyKilled, DISABLED_pauses_until_it_is_killed) {
    const char* const folder = std::getenv(kFolder);
    const char* const ready = std::getenv(kReady);
    ASSERT_TRUE(folder && ready);
    open_with_contents();
    ASSERT_EQ(::write(std::atoi(ready), "r", 1), 1);
    for (;;) ASSERT_NO_FATAL_FAILURE(cycle(folder));
}

// Returns when the process has begun its pauses.
pid_t start_pauses(const std::string& folder) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const std::string ready = std::to_string(ends[1]);
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setenv(kFolder, folder.c_str(), 1);
        setenv(kReady, ready.c_str(), 1);
        // The test may be in another shard than this one.
        unsetenv("GTEST_TOTAL_SHARDS");
        unsetenv("GTEST_SHARD_INDEX");
        execl("/proc/self/exe", "unit-core", "--gtest_also_run_disabled_tests",
              "--gtest_filter=OccupancyKilled.DISABLED_*", "--gtest_brief=1", nullptr);
        _exit(99);
    }
    close(ends[1]);
    char byte = 0;
    EXPECT_EQ(::read(ends[0], &byte, 1), 1) << "the process has ended by itself";
    close(ends[0]);
    return child;
}

TEST_F(OccupancyKilled, leaves_no_file_and_no_obstacle) {
    if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    std::string folder = testing::TempDir() + "stagehand-killed-XXXXXX";
    ASSERT_TRUE(mkdtemp(folder.data()));
    std::mt19937 random(11);
    for (int k = 0; k < kKills; k++) {
        const pid_t child = start_pauses(folder);
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
        ASSERT_EQ(kill(child, SIGKILL), 0);
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "it has ended by itself: " << status;
    }
    open_with_contents();
    ASSERT_NO_FATAL_FAILURE(cycle(folder.c_str()));
    EXPECT_TRUE(std::filesystem::is_empty(folder)) << "a file is left";
    EXPECT_EQ(read(file_, 9 * kMiB), contents(1, 9 * kMiB));
    EXPECT_EQ(read(host_, 5 * kMiB), contents(2, 5 * kMiB));
    std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace stagehand::test
