#include "core/device/process_marker.h"

#include <dirent.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace stagehand::core {
namespace {

// The marker is an empty memory file: other copies see its name among the process's descriptors, whatever they were loaded as. It is never
// closed, and this copy is never unloaded (-z nodelete): loaded again it is the same one, which remembers that it has claimed the process.
constexpr char kMarker[] = "stagehand-device-owner";

bool other_copy_has_marked() {
    DIR* const directory = opendir("/proc/self/fd");
    if (!directory) return false;
    const std::string wanted = std::string("/memfd:") + kMarker;
    bool found = false;
    while (const dirent* entry = readdir(directory)) {
        char target[128];
        const ssize_t length = readlinkat(dirfd(directory), entry->d_name, target, sizeof target - 1);
        found = found || (length > 0 && std::string(target, static_cast<size_t>(length)).compare(0, wanted.size(), wanted) == 0);
    }
    closedir(directory);
    return found;
}

}  // namespace

Status claim_process() {
    static std::mutex mutex;
    static bool claimed = false;
    std::lock_guard lock(mutex);
    if (claimed) return Status();
    const char* allow = std::getenv("STAGEHAND_ALLOW_DUPLICATE");
    if (other_copy_has_marked() && !(allow && !std::strcmp(allow, "1")))
        return Status(SH_ERROR_DUPLICATE_LIBRARY,
                      "another copy of libstagehand manages devices in this process; two would not know of each other's memory "
                      "(STAGEHAND_ALLOW_DUPLICATE=1 lets this one go on)");
    // Without a descriptor to spare there is no marker, which is no reason to refuse.
    memfd_create(kMarker, MFD_CLOEXEC);
    claimed = true;
    return Status();
}

}  // namespace stagehand::core
