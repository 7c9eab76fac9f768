// What the system lets this process have of host memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace stagehand::cli {

struct HostLimits {
    std::uint64_t total_bytes = 0;                    // memory of the machine
    std::uint64_t available_bytes = 0;                // of it, what can be had without swapping
    std::optional<std::uint64_t> memlock_soft_bytes;  // RLIMIT_MEMLOCK; nothing: unlimited
    std::optional<std::uint64_t> memlock_hard_bytes;
    std::optional<std::uint64_t> cgroup_limit_bytes;  // the lowest on the way to the root; nothing: none set
    std::optional<std::uint64_t> cgroup_used_bytes;   // of the group that sets the limit
    std::string cgroup;                               // that group; empty: none sets a limit
};

HostLimits read_host_limits();

}  // namespace stagehand::cli
