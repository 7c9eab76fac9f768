// The limits that control groups (v1 and v2, nested) put on this process's memory and processors.
#pragma once

#include <cstdint>
#include <string>

namespace stagehand::platform {

struct CgroupMemory {
    bool limited = false;
    uint64_t limit_bytes = UINT64_MAX;  // the least limit among the process's group and its ancestors
    uint64_t available_bytes =
        UINT64_MAX;    // the least room: limit less use, where page cache that can be dropped is not use
    std::string path;  // the group with the least room, as a folder
};

// `root` is put before every path that is read; tests give a tree of their own. Groups that cannot be read do
// not limit.
CgroupMemory read_cgroup_memory(const std::string& root = "");

// Whole processors that the groups' quotas allow, rounded up; UINT32_MAX without a quota.
uint32_t cgroup_cores(const std::string& root = "");

}  // namespace stagehand::platform
