#include "host_limits.h"

#include <sys/resource.h>
#include <charconv>
#include <filesystem>
#include <fstream>

namespace stagehand::cli {

namespace {

namespace fs = std::filesystem;

std::optional<std::uint64_t> number_in(const fs::path& path) {
    std::ifstream file(path);
    std::string word;
    if (!(file >> word)) return std::nullopt;
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;  // the text is "max"
    return number;
}

std::optional<std::uint64_t> limit_of(rlim_t limit) {
    if (limit == RLIM_INFINITY) return std::nullopt;
    return limit;
}

void read_memory(HostLimits& limits) {
    std::ifstream file("/proc/meminfo");
    std::string key;
    std::uint64_t kib = 0;
    std::string unit;
    while (file >> key >> kib && std::getline(file, unit))
        if (key == "MemTotal:")
            limits.total_bytes = kib * 1024;
        else if (key == "MemAvailable:")
            limits.available_bytes = kib * 1024;
}

// Finds the lowest limit of `group` and of all groups above it.
void read_group(HostLimits& limits, const fs::path& root, fs::path group, const char* limit_file,
                const char* used_file) {
    // Version 1 of control groups writes the largest multiple of a page if there is no limit.
    constexpr std::uint64_t none = std::uint64_t{1} << 62;
    for (;;) {
        const fs::path folder = root / group.relative_path();
        const auto limit = number_in(folder / limit_file);
        if (limit && *limit < none && (!limits.cgroup_limit_bytes || *limit < *limits.cgroup_limit_bytes)) {
            limits.cgroup_limit_bytes = limit;
            limits.cgroup_used_bytes = number_in(folder / used_file);
            limits.cgroup = group.empty() ? "/" : group.string();
        }
        if (!group.has_relative_path()) return;
        group = group.parent_path();
    }
}

void read_groups(HostLimits& limits) {
    std::ifstream file("/proc/self/cgroup");
    for (std::string line; std::getline(file, line);) {
        // "0::/user.slice" in version 2, "4:memory:/docker/…" in version 1.
        const auto first = line.find(':');
        const auto second = first == std::string::npos ? first : line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const fs::path group = line.substr(second + 1);
        if (controllers.empty())
            read_group(limits, "/sys/fs/cgroup", group, "memory.max", "memory.current");
        else if (("," + controllers + ",").find(",memory,") != std::string::npos)
            read_group(limits, "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes", "memory.usage_in_bytes");
    }
}

}  // namespace

HostLimits read_host_limits() {
    HostLimits limits;
    read_memory(limits);
    rlimit locked = {};
    if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0) {
        limits.memlock_soft_bytes = limit_of(locked.rlim_cur);
        limits.memlock_hard_bytes = limit_of(locked.rlim_max);
    }
    read_groups(limits);
    return limits;
}

}  // namespace stagehand::cli
