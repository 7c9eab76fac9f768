#include "platform/cgroup.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include <sys/stat.h>

#include "base/number.h"

namespace stagehand::platform {
namespace {

// A hierarchy of groups as this process sees it: the folder of the mount, and the process's own group.
struct Hierarchy {
    bool unified = false;
    std::string mount;
    std::string group;  // below `mount`, without a slash at its end; empty if the mount is the group
};

bool is_folder(const std::string& path) {
    struct stat info = {};
    return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool has_word(const std::string& list, const std::string& word) {
    std::istringstream words(list);
    for (std::string each; std::getline(words, each, ',');)
        if (each == word) return true;
    return false;
}

std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// Returns nothing for "max", for other text that is not a number, and for a missing file.
std::optional<uint64_t> number_in(const std::string& path) { return read_number<uint64_t>(first_line(path)); }

// The kernel writes a space, tab, newline or backslash in a mount point as \ooo.
std::string unescape(const std::string& text) {
    std::string plain;
    for (size_t i = 0; i < text.size(); i++) {
        if (text[i] == '\\' && i + 3 < text.size()) {
            plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
            i += 3;
        } else {
            plain += text[i];
        }
    }
    return plain;
}

// Returns the path in the line of /proc/self/cgroup for a v1 controller, or for v2 if `controller` is empty.
std::optional<std::string> group_of(const std::string& root, const std::string& controller) {
    std::ifstream file(root + "/proc/self/cgroup");
    for (std::string line; std::getline(file, line);) {
        const size_t first = line.find(':');
        const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const bool wanted = controller.empty() ? controllers.empty() : has_word(controllers, controller);
        if (wanted) return line.substr(second + 1);
    }
    return std::nullopt;
}

// In a container the path of the group may begin at a root that is not visible here. So the path is cut at the root of
// the mount. If the folder is still missing, the mount itself shows the container's group.
std::string visible_group(const std::string& mount, const std::string& mount_root, std::string group) {
    if (mount_root != "/" && group.compare(0, mount_root.size(), mount_root) == 0 &&
        (group.size() == mount_root.size() || group[mount_root.size()] == '/'))
        group.erase(0, mount_root.size());
    while (!group.empty() && group.back() == '/') group.pop_back();
    if (group.compare(0, 3, "/..") == 0 || !is_folder(mount + group)) return "";
    return group;
}

// Returns every hierarchy that may hold the controller: the v1 mounts of the controller, and v2.
std::vector<Hierarchy> hierarchies(const std::string& root, const std::string& controller) {
    std::vector<Hierarchy> found;
    std::ifstream file(root + "/proc/self/mountinfo");
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string id, parent, device, mount_root, mount, skip, type, source, options;
        words >> id >> parent >> device >> mount_root >> mount;
        while (words >> skip && skip != "-") {
        }
        words >> type >> source >> options;
        Hierarchy hierarchy;
        hierarchy.unified = type == "cgroup2";
        if (!hierarchy.unified && !(type == "cgroup" && has_word(options, controller))) continue;
        const auto group = group_of(root, hierarchy.unified ? "" : controller);
        if (!group) continue;
        hierarchy.mount = root + unescape(mount);
        hierarchy.group = visible_group(hierarchy.mount, unescape(mount_root), *group);
        found.push_back(hierarchy);
    }
    return found;
}

// Calls `visit` with the folder of the process's group and of each visible ancestor.
template <typename Visit>
void for_each_group(const Hierarchy& hierarchy, Visit visit) {
    std::string group = hierarchy.group;
    for (;;) {
        visit(hierarchy.mount + group);
        if (group.empty()) return;
        group.erase(group.find_last_of('/'));
    }
}

// The kernel drops page cache under pressure, so page cache counts as available.
uint64_t reclaimable(const std::string& folder, bool unified) {
    std::ifstream file(folder + "/memory.stat");
    const std::string prefix = unified ? "" : "total_";
    uint64_t bytes = 0;
    for (std::string name, value; file >> name >> value;)
        if (name == prefix + "inactive_file" || name == prefix + "active_file")
            bytes += read_number<uint64_t>(value).value_or(0);
    return bytes;
}

}  // namespace

CgroupMemory read_cgroup_memory(const std::string& root) {
    CgroupMemory result;
    for (const Hierarchy& hierarchy : hierarchies(root, "memory")) {
        for_each_group(hierarchy, [&](const std::string& folder) {
            const bool unified = hierarchy.unified;
            uint64_t limit =
                number_in(folder + (unified ? "/memory.max" : "/memory.limit_in_bytes")).value_or(UINT64_MAX);
            if (unified) limit = std::min(limit, number_in(folder + "/memory.high").value_or(UINT64_MAX));
            if (limit >= uint64_t(1) << 62) return;  // v1 writes "no limit" as a number near 2^63
            const uint64_t used =
                number_in(folder + (unified ? "/memory.current" : "/memory.usage_in_bytes")).value_or(0);
            const uint64_t kept = used - std::min(used, reclaimable(folder, unified));
            const uint64_t available = limit - std::min(limit, kept);
            result.limited = true;
            result.limit_bytes = std::min(result.limit_bytes, limit);
            if (available < result.available_bytes) {
                result.available_bytes = available;
                result.path = folder;
            }
        });
    }
    return result;
}

uint32_t cgroup_cores(const std::string& root) {
    uint64_t cores = UINT32_MAX;
    for (const Hierarchy& hierarchy : hierarchies(root, "cpu")) {
        for_each_group(hierarchy, [&](const std::string& folder) {
            std::optional<uint64_t> quota, period;
            if (hierarchy.unified) {
                std::istringstream words(first_line(folder + "/cpu.max"));
                std::string first, second;
                words >> first >> second;
                quota = read_number<uint64_t>(first);
                period = read_number<uint64_t>(second);
            } else {
                quota = number_in(folder + "/cpu.cfs_quota_us");
                period = number_in(folder + "/cpu.cfs_period_us");
            }
            if (quota && period && *quota > 0 && *period > 0)
                cores = std::min(cores, std::max<uint64_t>(1, (*quota - 1) / *period + 1));
        });
    }
    return static_cast<uint32_t>(cores);
}

}  // namespace stagehand::platform
