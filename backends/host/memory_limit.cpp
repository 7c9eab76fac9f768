#include "host/memory_limit.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

namespace stagehand::host {
namespace {

// A file that holds one number, or "max"; UINT64_MAX without a limit.
uint64_t limit_in(const std::string& path) {
    std::FILE* file = std::fopen(path.c_str(), "re");
    if (!file) return UINT64_MAX;
    unsigned long long value = 0;
    const bool is_number = std::fscanf(file, "%llu", &value) == 1;
    std::fclose(file);
    return is_number ? value : UINT64_MAX;
}

// A group is limited by its ancestors as well. In a container the group's path may not exist under the mount: then only the
// root of the mount, which is the container's own group, is there to be read.
uint64_t limit_of_group(const std::string& mount, std::string group, const char* file) {
    uint64_t least = limit_in(mount + "/" + file);
    while (!group.empty() && group != "/") {
        least = std::min(least, limit_in(mount + group + "/" + file));
        group.erase(group.find_last_of('/'));
    }
    return least;
}

}  // namespace

uint64_t process_memory_limit() {
    struct sysinfo machine = {};
    uint64_t least = uint64_t(1) << 30;
    if (sysinfo(&machine) == 0) least = static_cast<uint64_t>(machine.totalram) * machine.mem_unit;
    std::FILE* groups = std::fopen("/proc/self/cgroup", "re");
    if (!groups) return least;
    char line[4096];
    while (std::fgets(line, sizeof line, groups)) {
        line[std::strcspn(line, "\n")] = 0;
        char* const controllers = std::strchr(line, ':');
        char* const path = controllers ? std::strchr(controllers + 1, ':') : nullptr;
        if (!path || path[1] != '/') continue;
        *path = 0;
        if (!std::strncmp(line, "0:", 2) && controllers[1] == 0) {
            least = std::min(least, limit_of_group("/sys/fs/cgroup", path + 1, "memory.max"));
        } else if (!std::strcmp(controllers + 1, "memory")) {
            least = std::min(least, limit_of_group("/sys/fs/cgroup/memory", path + 1, "memory.limit_in_bytes"));
        }
    }
    std::fclose(groups);
    return std::max<uint64_t>(least, 1 << 20);
}

}  // namespace stagehand::host
