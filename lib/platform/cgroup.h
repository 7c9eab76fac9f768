// Reads the limits of control groups (v1 and v2, nested) on the memory and processors of this process.
#pragma once

#include <cstdint>
#include <string>

namespace stagehand::platform {

struct CgroupMemory {
    bool limited = false;
    uint64_t limit_bytes = UINT64_MAX;  // the smallest limit of the process's group and its ancestors
    uint64_t available_bytes =
        UINT64_MAX;    // the smallest limit minus use; page cache that can be dropped does not count as use
    std::string path;  // folder of the group with the least available memory
};

// `root` is put before every path that is read, so that tests can use their own tree. A group that cannot be read does
// not limit.
CgroupMemory read_cgroup_memory(const std::string& root = "");

// The number of whole processors that the quotas of the groups allow, rounded up. UINT32_MAX if there is no quota.
uint32_t cgroup_cores(const std::string& root = "");

}  // namespace stagehand::platform
