#include "transfer/host/staging_file.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include <dirent.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/size_text.h"

namespace stagehand::transfer {
namespace {

constexpr uint64_t kAlignment = 64 << 10;        // of ranges: blocks of no file system are larger
constexpr char kStem[] = "stagehand-contents-";  // then the process, when it was started, and a number

// When a process was started, in ticks since the machine was: a process with the same number later has another time. 0:
// there is no such process.
uint64_t started_at(long process) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    size_t at = text.rfind(')');  // the name before it may have any characters
    for (int field = 2; field < 22 && at != std::string::npos; field++) at = text.find(' ', at + 1);
    return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at, nullptr, 10);
}

// Removes files of processes that are gone.
void remove_stale_files(const std::string& folder) {
    DIR* const directory = opendir(folder.c_str());
    if (!directory) return;
    while (const dirent* const entry = readdir(directory)) {
        long process = 0;
        unsigned long long started = 0, number = 0;
        const char* const rest = entry->d_name + sizeof kStem - 1;
        if (std::strncmp(entry->d_name, kStem, sizeof kStem - 1) != 0 ||
            std::sscanf(rest, "%ld-%llu-%llu", &process, &started, &number) != 3)
            continue;
        if (started_at(process) != started) (void)unlinkat(dirfd(directory), entry->d_name, 0);
    }
    closedir(directory);
}

}  // namespace

StagingFile::~StagingFile() {
    if (!path_.empty()) (void)unlink(path_.c_str());
    if (descriptor_ >= 0) (void)close(descriptor_);
}

Status StagingFile::open(const std::string& folder, std::shared_ptr<StagingFile>* out) {
    auto file = std::make_shared<StagingFile>();
    remove_stale_files(folder);
    SH_TRY(file->open_in(folder));
    *out = std::move(file);
    return Status();
}

Status StagingFile::open_in(const std::string& folder) {
    folder_ = folder;
    constexpr int kFlags = O_RDWR | O_CLOEXEC;
    for (const int direct : {O_DIRECT, 0}) {
        descriptor_ = ::open(folder.c_str(), kFlags | O_TMPFILE | direct, 0600);
        if (descriptor_ >= 0) return Status();
    }
    // EISDIR: a kernel or a file system that does not know unnamed files.
    return errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL ? open_named(folder) : failed(true, errno);
}

Status StagingFile::open_named(const std::string& folder) {
    static std::atomic<uint64_t> count{0};
    const long process = static_cast<long>(getpid());
    path_ = folder + "/" + kStem + std::to_string(process) + "-" + std::to_string(started_at(process)) + "-" +
            std::to_string(count.fetch_add(1));
    for (const int direct : {O_DIRECT, 0}) {
        descriptor_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_CREAT | O_TRUNC | direct, 0600);
        if (descriptor_ >= 0) break;
        // O_DIRECT is refused after the file was made.
        if (errno != EINVAL) break;
    }
    if (descriptor_ < 0) {
        const int error = errno;
        path_.clear();
        return failed(true, error);
    }
    if (unlink(path_.c_str()) == 0) path_.clear();
    return Status();
}

Status StagingFile::take_room(uint64_t bytes, uint64_t* out_begin) {
    const uint64_t begin = (end_ + kAlignment - 1) / kAlignment * kAlignment;
    int error = 0;
    do {
        error = fallocate(descriptor_, 0, static_cast<off_t>(begin), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error == EOPNOTSUPP) {  // without a promise, the room may be gone later: then the pause fails
        struct statvfs room = {};
        error = fstatvfs(descriptor_, &room) == 0 && uint64_t(room.f_bavail) * room.f_frsize < bytes ? ENOSPC : 0;
    }
    if (!error) {
        *out_begin = begin;
        end_ = begin + bytes;
        return Status();
    }
    return Status(SH_ERROR_IO, exact_size_text(bytes) + " of contents do not fit into the folder \"" + folder_ +
                                   "\": " + std::strerror(error));
}

void StagingFile::give_room_back(uint64_t begin, uint64_t bytes) noexcept {
    (void)fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                    static_cast<off_t>(bytes));
}

void StagingFile::give_up_direct() noexcept {
    const int flags = fcntl(descriptor_, F_GETFL);
    if (flags >= 0) (void)fcntl(descriptor_, F_SETFL, flags & ~O_DIRECT);
}

Status StagingFile::failed(bool writing, int error) const {
    return Status(SH_ERROR_IO, std::string("contents cannot be ") + (writing ? "written to" : "read from") +
                                   " a file in the folder \"" + folder_ + "\": " + std::strerror(error));
}

Status StagingFolder::take(uint64_t bytes, std::unique_ptr<StagingRange>* out) {
    if (!file_) SH_TRY(StagingFile::open(path_, &file_));
    uint64_t begin = 0;
    SH_TRY(file_->take_room(bytes, &begin));
    *out = std::make_unique<StagingRange>(file_, begin, bytes);
    return Status();
}

}  // namespace stagehand::transfer
