// Reads how much memory and how many processors the host has, and how many of them this process may use.
#pragma once

#include <cstdint>
#include <string>

namespace stagehand::platform {

struct HostMemory {
    uint64_t total_bytes = 0;      // of the machine
    uint64_t limit_bytes = 0;      // of this process: the machine's memory, or the limit of a control group
    uint64_t available_bytes = 0;  // memory that the process can get now without swapping, within the limit
    std::string limited_by;        // folder of the control group with the least room; empty: the machine is the limit
};

// For `root`, see read_cgroup_memory().
HostMemory read_host_memory(const std::string& root = "");

// The number of processors that this process may use, at least 1. Its affinity and the quotas of its control groups
// limit the number.
uint32_t usable_cores();

}  // namespace stagehand::platform
