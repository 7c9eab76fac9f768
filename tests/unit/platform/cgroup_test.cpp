#include "platform/cgroup.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "platform/host_memory.h"

namespace stagehand::platform {
namespace {

// A tree of files in the working directory that stands for the root folder.
class FakeRoot : public testing::Test {
protected:
    void SetUp() override {
        root_ = "cgroup-test-" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name());
        std::filesystem::remove_all(root_);
        std::filesystem::create_directories(root_);
    }
    void TearDown() override { std::filesystem::remove_all(root_); }

    void write(const std::string& path, const std::string& text) {
        const std::filesystem::path file = root_ + path;
        std::filesystem::create_directories(file.parent_path());
        std::ofstream(file) << text;
    }
    void write_unified(const std::string& group, const std::string& limit, const std::string& used,
                       const std::string& stat = "") {
        write("/sys/fs/cgroup" + group + "/memory.max", limit + "\n");
        write("/sys/fs/cgroup" + group + "/memory.current", used + "\n");
        write("/sys/fs/cgroup" + group + "/memory.stat", stat);
    }
    void mount_unified(const std::string& group, const std::string& mount_root = "/") {
        write("/proc/self/cgroup", "0::" + group + "\n");
        write("/proc/self/mountinfo",
              "25 1 8:1 / / rw - ext4 /dev/sda rw\n"
              "31 25 0:28 " +
                  mount_root + " /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
    }

    std::string root_;
};

TEST_F(FakeRoot, WithoutGroupsNothingIsLimited) {
    const CgroupMemory memory = read_cgroup_memory(root_);
    EXPECT_FALSE(memory.limited);
    EXPECT_EQ(memory.limit_bytes, UINT64_MAX);
    EXPECT_EQ(cgroup_cores(root_), UINT32_MAX);
}

TEST_F(FakeRoot, UnifiedLimitLessUseButNotPageCache) {
    mount_unified("/app");
    write_unified("/app", "1000000", "700000", "anon 400000\ninactive_file 200000\nactive_file 100000\nslab 5\n");
    const CgroupMemory memory = read_cgroup_memory(root_);
    EXPECT_TRUE(memory.limited);
    EXPECT_EQ(memory.limit_bytes, 1000000u);
    EXPECT_EQ(memory.available_bytes, 600000u);
    EXPECT_EQ(memory.path, root_ + "/sys/fs/cgroup/app");
}

TEST_F(FakeRoot, AContainersMountShowsItsOwnGroup) {
    // The path is told from the host's root, of which the mount shows only the container's part.
    mount_unified("/docker/0123/worker", "/docker/0123");
    write_unified("", "5000", "1000");
    write_unified("/worker", "4000", "1000");
    EXPECT_EQ(read_cgroup_memory(root_).limit_bytes, 4000u);
    // A path outside of what is mounted.
    mount_unified("/../../elsewhere");
    EXPECT_EQ(read_cgroup_memory(root_).limit_bytes, 5000u);
    mount_unified("/not/there");
    EXPECT_EQ(read_cgroup_memory(root_).limit_bytes, 5000u);
}

TEST_F(FakeRoot, OldHierarchiesHaveOtherNames) {
    write("/proc/self/cgroup", "12:cpu,cpuacct:/jobs/7\n9:memory:/jobs/7\n1:name=systemd:/init\n0::/\n");
    write("/proc/self/mountinfo",
          "33 25 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
          "35 25 0:32 / /sys/fs/cgroup/memory\\040old rw,relatime - cgroup cgroup rw,memory\n"
          "41 25 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n");
    const std::string memory = "/sys/fs/cgroup/memory old";
    write(memory + "/memory.limit_in_bytes", "9223372036854771712\n");
    write(memory + "/jobs/memory.limit_in_bytes", "8000000\n");
    write(memory + "/jobs/memory.usage_in_bytes", "3000000\n");
    write(memory + "/jobs/7/memory.limit_in_bytes", "6000000\n");
    write(memory + "/jobs/7/memory.usage_in_bytes", "2500000\n");
    write(memory + "/jobs/7/memory.stat", "inactive_file 1\ntotal_inactive_file 400000\ntotal_active_file 100000\n");
    const CgroupMemory result = read_cgroup_memory(root_);
    EXPECT_EQ(result.limit_bytes, 6000000u);
    EXPECT_EQ(result.available_bytes, 4000000u);
    write("/sys/fs/cgroup/cpu,cpuacct/jobs/7/cpu.cfs_quota_us", "250000\n");
    write("/sys/fs/cgroup/cpu,cpuacct/jobs/7/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(cgroup_cores(root_), 3u);
    write("/sys/fs/cgroup/cpu,cpuacct/jobs/7/cpu.cfs_quota_us", "-1\n");
    EXPECT_EQ(cgroup_cores(root_), UINT32_MAX);
}

TEST_F(FakeRoot, ProcessorQuotasAreRoundedUpAndNested) {
    mount_unified("/a/b");
    write("/sys/fs/cgroup/a/cpu.max", "150000 100000\n");
    write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    EXPECT_EQ(cgroup_cores(root_), 2u);
    write("/sys/fs/cgroup/a/b/cpu.max", "5000 100000\n");
    EXPECT_EQ(cgroup_cores(root_), 1u);
}

TEST_F(FakeRoot, NonsenseIsNoLimit) {
    mount_unified("/app");
    write("/proc/self/mountinfo", "garbage\n31 25\n\n31 25 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    write_unified("/app", "lots", "none", "inactive_file\n");
    write("/sys/fs/cgroup/app/cpu.max", "fast\n");
    EXPECT_FALSE(read_cgroup_memory(root_).limited);
    EXPECT_EQ(cgroup_cores(root_), UINT32_MAX);
    write("/proc/self/cgroup", "0:\n:::\n\n");
    EXPECT_FALSE(read_cgroup_memory(root_).limited);
}

TEST_F(FakeRoot, HostMemoryIsTheMachinesOrTheGroups) {
    write("/proc/meminfo",
          "MemTotal:       1000 kB\nMemFree:  300 kB\nMemAvailable:    600 kB\nHugePages_Total:   0\nX: 1 "
          "kB\n");
    HostMemory memory = read_host_memory(root_);
    EXPECT_EQ(memory.total_bytes, 1024000u);
    EXPECT_EQ(memory.limit_bytes, 1024000u);
    EXPECT_EQ(memory.available_bytes, 614400u);
    EXPECT_TRUE(memory.limited_by.empty());
    mount_unified("/app");
    write_unified("/app", "500000", "100000");
    memory = read_host_memory(root_);
    EXPECT_EQ(memory.total_bytes, 1024000u);
    EXPECT_EQ(memory.limit_bytes, 500000u);
    EXPECT_EQ(memory.available_bytes, 400000u);
    EXPECT_EQ(memory.limited_by, root_ + "/sys/fs/cgroup/app");
}

TEST(HostMemory, OfThisMachineIsPlausible) {
    const HostMemory memory = read_host_memory();
    EXPECT_GT(memory.available_bytes, 0u);
    EXPECT_LE(memory.available_bytes, memory.limit_bytes);
    EXPECT_LE(memory.limit_bytes, memory.total_bytes);
    EXPECT_GE(usable_cores(), 1u);
}

}  // namespace
}  // namespace stagehand::platform
