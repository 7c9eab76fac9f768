#include "transfer/source/open_file.h"

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/plain_format.h"
#include "platform/anonymous_memory.h"

namespace stagehand::transfer {
namespace {

struct OpenFiles {
    std::mutex mutex;
    std::map<std::pair<dev_t, ino_t>, std::unique_ptr<OpenFile>> files;
};

// The table is never destroyed, because sources may be closed while the process exits.
OpenFiles& open_files() {
    static OpenFiles* const instance = new OpenFiles;
    return *instance;
}

Status bad_descriptor(int descriptor, const std::string& why) {
    return Status(SH_ERROR_INVALID_ARGUMENT, "file: descriptor " + std::to_string(descriptor) + " " + why);
}

platform::Descriptor reopen(int descriptor, int flags) {
    char path[40];
    plain_format(path, sizeof path, "/proc/self/fd/%d", descriptor);
    return platform::Descriptor(open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | flags));
}

// The struct statx of Linux 6.1 and later. The headers of Debian 12 lack its last members.
struct StatxWithDirect {
    uint32_t mask;
    uint32_t before[37];
    uint32_t memory_alignment, offset_alignment;
    uint32_t after[64];
};
constexpr unsigned kStatxDirectAlign = 0x2000;

void find_alignment(OpenFile* file) {
    StatxWithDirect info = {};
    static_assert(offsetof(StatxWithDirect, memory_alignment) == 0x98);
    if (syscall(SYS_statx, file->direct_file.number(), "", AT_EMPTY_PATH, kStatxDirectAlign, &info) != 0) return;
    if (!(info.mask & kStatxDirectAlign)) return;
    const auto usable = [](uint32_t value) { return value > 0 && value <= 4096 && (value & (value - 1)) == 0; };
    if (usable(info.memory_alignment) && usable(info.offset_alignment)) {
        file->memory_alignment = info.memory_alignment;
        file->offset_alignment = info.offset_alignment;
    }
}

// Some file systems accept O_DIRECT and refuse the reads. So this function tries a read.
bool direct_reads_work(const OpenFile& file) {
    const uint64_t page = platform::page_size();
    void* const memory = std::aligned_alloc(page, page);
    if (!memory) return false;
    ssize_t got = 0;
    do {
        got = pread(file.direct_file.number(), memory, page, 0);
    } while (got < 0 && errno == EINTR);
    std::free(memory);
    return got >= 0;
}

Status open_new(int descriptor, const struct stat& info, OpenFile* file) {
    const int flags = fcntl(descriptor, F_GETFL);
    if (flags < 0)
        return bad_descriptor(descriptor, std::string("does not report its open mode: ") + std::strerror(errno));
    if ((flags & O_ACCMODE) == O_WRONLY) return bad_descriptor(descriptor, "is not open for reading");
    file->device = info.st_dev;
    file->inode = info.st_ino;
    // The library opens a file description of its own, because flags and read-ahead advice belong to the caller's.
    file->file = reopen(descriptor, 0);
    if (!file->file.is_open()) {
        if (flags & O_DIRECT)
            return bad_descriptor(descriptor, "is open with O_DIRECT and cannot be opened again without it");
        file->file = platform::Descriptor(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
        if (!file->file.is_open()) {
            const int error = errno;
            if (error == EMFILE || error == ENFILE)
                return Status(SH_ERROR_OUT_OF_HOST_MEMORY,
                              "the process has no file descriptor left for a source; raise its limit");
            return bad_descriptor(descriptor, std::string("cannot be duplicated: ") + std::strerror(error));
        }
    }
    file->direct_file = reopen(descriptor, O_DIRECT);
    if (file->direct_file.is_open() && !direct_reads_work(*file)) (void)file->direct_file.close();
    if (file->direct_file.is_open()) find_alignment(file);
    return Status();
}

}  // namespace

Status open_file(int descriptor, OpenFile** out_file) {
    struct stat info = {};
    if (fstat(descriptor, &info) != 0) return bad_descriptor(descriptor, "is not open");
    if (!S_ISREG(info.st_mode) && !S_ISBLK(info.st_mode))
        return bad_descriptor(descriptor, "is not a regular file or a block device, so it cannot be read at an offset");
    std::lock_guard lock(open_files().mutex);
    const std::pair key(info.st_dev, info.st_ino);
    auto entry = open_files().files.find(key);
    if (entry == open_files().files.end()) {
        auto file = std::make_unique<OpenFile>();
        SH_TRY(open_new(descriptor, info, file.get()));
        entry = open_files().files.emplace(key, std::move(file)).first;
    }
    entry->second->users++;
    *out_file = entry->second.get();
    return Status();
}

void close_file(OpenFile* file) {
    std::lock_guard lock(open_files().mutex);
    if (--file->users > 0) return;
    open_files().files.erase({file->device, file->inode});
}

const char* file_name(int descriptor, char* buffer, size_t capacity) {
    char path[40];
    plain_format(path, sizeof path, "/proc/self/fd/%d", descriptor);
    const ssize_t length = readlink(path, buffer, capacity - 1);
    if (length > 0)
        buffer[length] = 0;
    else
        plain_format(buffer, capacity, "file descriptor %d", descriptor);
    return buffer;
}

}  // namespace stagehand::transfer
