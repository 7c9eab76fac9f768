// What the host has of memory and processors, and how much of both this process may use.
#pragma once

#include <cstdint>
#include <string>

namespace stagehand::platform {

struct HostMemory {
    uint64_t total_bytes = 0;  // of the machine
    uint64_t limit_bytes =
        0;  // what this process may have at most: the machine's, or a control group's limit
    uint64_t available_bytes = 0;  // what can still be had now without swapping, within the limit
    std::string limited_by;  // folder of the control group with the least room; empty: the machine itself
};

// `root`: see read_cgroup_memory().
HostMemory read_host_memory(const std::string& root = "");

// Processors that this process may run on: its affinity and the quotas of its control groups. At least 1.
uint32_t usable_cores();

}  // namespace stagehand::platform
