// The system's limits on the host memory of this process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace stagehand::cli {

struct HostLimits {
    std::uint64_t total_bytes = 0;                    // memory of the machine
    std::uint64_t available_bytes = 0;                // the part that is available without swapping
    std::optional<std::uint64_t> memlock_soft_bytes;  // RLIMIT_MEMLOCK; nothing: unlimited
    std::optional<std::uint64_t> memlock_hard_bytes;
    std::optional<std::uint64_t> cgroup_limit_bytes;  // the lowest limit up to the root; nothing: no limit
    std::optional<std::uint64_t> cgroup_used_bytes;   // used by the group that sets the limit
    std::string cgroup;                               // the group that sets the limit; empty: no limit
};

HostLimits read_host_limits();

}  // namespace stagehand::cli
