#include "platform/host_memory.h"

#include <algorithm>
#include <fstream>
#include <thread>

#include <sched.h>

#include "base/number.h"
#include "platform/cgroup.h"

namespace stagehand::platform {

HostMemory read_host_memory(const std::string& root) {
    HostMemory memory;
    std::ifstream file(root + "/proc/meminfo");
    for (std::string name, value, unit; file >> name >> value; std::getline(file, unit)) {
        const uint64_t kibibytes = read_number<uint64_t>(value).value_or(0);
        const uint64_t bytes = kibibytes > UINT64_MAX / 1024 ? UINT64_MAX : kibibytes * 1024;
        if (name == "MemTotal:") memory.total_bytes = bytes;
        if (name == "MemAvailable:") memory.available_bytes = bytes;
    }
    if (memory.total_bytes == 0)
        memory.total_bytes = memory.available_bytes = UINT64_MAX;  // unknown, so there is no reason to refuse
    memory.limit_bytes = memory.total_bytes;
    const CgroupMemory group = read_cgroup_memory(root);
    memory.limit_bytes = std::min(memory.limit_bytes, group.limit_bytes);
    if (group.limited && group.available_bytes < memory.available_bytes) {
        memory.available_bytes = group.available_bytes;
        memory.limited_by = group.path;
    }
    return memory;
}

uint32_t usable_cores() {
    uint32_t cores = std::thread::hardware_concurrency();
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) cores = static_cast<uint32_t>(CPU_COUNT(&set));
    return std::max(1u, std::min(cores, cgroup_cores()));
}

}  // namespace stagehand::platform
