#include "core/device/process_marker.h"

#include <dirent.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "platform/descriptor.h"

namespace stagehand::core {
namespace {

// The marker is an empty memory file. Other copies of the library see its name among the descriptors of the process,
// whatever their file names are. The marker is never closed, and this copy is never unloaded (-z nodelete). So a copy
// that is loaded again is the same one and remembers its claim.
constexpr char kMarker[] = "stagehand-device-owner";

bool other_copy_has_marked() {
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir("/proc/self/fd"), closedir);
    if (!directory) return false;
    const std::string wanted = std::string("/memfd:") + kMarker;
    bool found = false;
    while (const dirent* entry = readdir(directory.get())) {
        char target[128];
        const ssize_t length = readlinkat(dirfd(directory.get()), entry->d_name, target, sizeof target - 1);
        found = found ||
                (length > 0 && std::string(target, static_cast<size_t>(length)).compare(0, wanted.size(), wanted) == 0);
    }
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
        return Status(
            SH_ERROR_DUPLICATE_LIBRARY,
            "another copy of libstagehand manages devices in this process, and neither copy knows the other's memory "
            "(STAGEHAND_ALLOW_DUPLICATE=1 allows this copy to go on)");
    // Without a free descriptor there is no marker. That is no reason to refuse.
    (void)platform::Descriptor(memfd_create(kMarker, MFD_CLOEXEC)).release();
    claimed = true;
    return Status();
}

}  // namespace stagehand::core
