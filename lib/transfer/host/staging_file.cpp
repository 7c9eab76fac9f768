#include "transfer/host/staging_file.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <new>
#include <optional>
#include <string_view>

#include <dirent.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/no_signals.h"
#include "base/number.h"
#include "base/size_text.h"

namespace stagehand::transfer {
namespace {

constexpr char kStem[] = "stagehand-contents-";  // then the process, when it was started, and a number

// When a process was started, in ticks since the machine was: a process with the same number later has another time. 0:
// there is no such process.
uint64_t started_at(uint64_t process) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    size_t at = text.rfind(')');  // the name before it may have any characters
    for (int field = 2; field < 22 && at != std::string::npos; field++) at = text.find(' ', at + 1);
    if (at == std::string::npos) return 0;
    std::string_view rest = std::string_view(text).substr(at + 1);
    return take_number<uint64_t>(&rest).value_or(0);
}

// Whether it is the name of a file of a process that is gone.
bool is_stale(std::string_view name) {
    if (!name.starts_with(kStem)) return false;
    name.remove_prefix(sizeof kStem - 1);
    const size_t first = std::min(name.find('-'), name.size()),
                 second = std::min(name.find('-', first + 1), name.size());
    const auto process = read_number<uint64_t>(name.substr(0, first));
    const auto started =
        second > first ? read_number<uint64_t>(name.substr(first + 1, second - first - 1)) : std::nullopt;
    return process && started && started_at(*process) != *started;
}

void remove_stale_files(const std::string& folder) {
    DIR* const directory = opendir(folder.c_str());
    if (!directory) return;
    while (const dirent* const entry = readdir(directory)) {
        if (is_stale(entry->d_name)) (void)unlinkat(dirfd(directory), entry->d_name, 0);
    }
    closedir(directory);
}

}  // namespace

StagingFile::~StagingFile() {
    if (!path_.empty()) (void)unlink(path_.c_str());
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
        descriptor_ = platform::Descriptor(::open(folder.c_str(), kFlags | O_TMPFILE | direct, 0600));
        if (descriptor_.is_open()) return Status();
    }
    // EISDIR: a kernel or a file system that does not know unnamed files.
    return errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL ? open_named(folder) : failed(true, errno);
}

Status StagingFile::open_named(const std::string& folder) {
    static std::atomic<uint64_t> count{0};
    const auto process = static_cast<uint64_t>(getpid());
    path_ = folder + "/" + kStem + std::to_string(process) + "-" + std::to_string(started_at(process)) + "-" +
            std::to_string(count.fetch_add(1));
    for (const int direct : {O_DIRECT, 0}) {
        descriptor_ =
            platform::Descriptor(::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_CREAT | O_TRUNC | direct, 0600));
        if (descriptor_.is_open()) break;
        // O_DIRECT is refused after the file was made.
        if (errno != EINVAL) break;
    }
    if (!descriptor_.is_open()) {
        const int error = errno;
        path_.clear();
        return failed(true, error);
    }
    if (unlink(path_.c_str()) == 0) path_.clear();
    return Status();
}

namespace {

uint64_t aligned(uint64_t bytes) {
    return (bytes + StagingFile::kAlignment - 1) / StagingFile::kAlignment * StagingFile::kAlignment;
}

template <class Call>
int until_done(Call&& call) {
    const NoSignals quiet;
    int error = 0;
    do {
        error = call() == 0 ? 0 : errno;
    } while (error == EINTR);
    return error;
}

}  // namespace

Status StagingFile::take_room(uint64_t bytes, uint64_t* out_begin) {
    const uint64_t room = aligned(bytes);
    const auto part = std::find_if(free_.begin(), free_.end(), [&](const auto& each) { return each.second >= room; });
    const uint64_t begin = part == free_.end() ? end_ : part->first;
    if (const int error = allocate(begin, room))
        return Status(SH_ERROR_IO, exact_size_text(bytes) + " of contents do not fit into the folder \"" + folder_ +
                                       "\": " + std::strerror(error));
    if (part != free_.end()) {
        auto node = free_.extract(part);
        node.key() += room;
        node.mapped() -= room;
        if (node.mapped()) free_.insert(std::move(node));
    }
    end_ = std::max(end_, begin + room);
    *out_begin = begin;
    return Status();
}

// Returns the error's number, or 0.
int StagingFile::allocate(uint64_t begin, uint64_t bytes) {
    const int error =
        until_done([&] { return fallocate(descriptor(), 0, static_cast<off_t>(begin), static_cast<off_t>(bytes)); });
    if (error != EOPNOTSUPP) return error;
    // Without a promise the room may be gone later: then the pause fails. Room that was used before is there still.
    const uint64_t more = begin + bytes - std::min(begin + bytes, end_);
    struct statvfs left = {};
    return fstatvfs(descriptor(), &left) == 0 && uint64_t(left.f_bavail) * left.f_frsize < more ? ENOSPC : 0;
}

void StagingFile::give_room_back(uint64_t begin, uint64_t bytes) noexcept {
    uint64_t room = aligned(bytes);
    (void)until_done([&] {
        return fallocate(descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                         static_cast<off_t>(room));
    });
    try {
        auto next = free_.lower_bound(begin);
        if (next != free_.end() && next->first == begin + room) {
            room += next->second;
            next = free_.erase(next);
        }
        const auto before = next == free_.begin() ? free_.end() : std::prev(next);
        if (before != free_.end() && before->first + before->second == begin)
            before->second += room;
        else
            free_.emplace_hint(next, begin, room);
    } catch (const std::bad_alloc&) {  // the room is not used again until the file is closed
    }
}

void StagingFile::give_up_direct() noexcept {
    const int flags = fcntl(descriptor(), F_GETFL);
    if (flags >= 0) (void)fcntl(descriptor(), F_SETFL, flags & ~O_DIRECT);
}

Status StagingFile::failed(bool writing, int error) const {
    return Status(SH_ERROR_IO, std::string("contents cannot be ") + (writing ? "written to" : "read from") +
                                   " a file in the folder \"" + folder_ + "\": " + std::strerror(error));
}

Status StagingFiles::take(const std::string& folder, uint64_t bytes, std::unique_ptr<StagingRange>* out) {
    uint64_t begin = 0;
    std::shared_ptr<StagingFile> file = file_.lock();
    // A file has a largest size. Where room is short in the whole folder, a new file tells.
    if (!file || file->folder() != folder || !file->take_room(bytes, &begin).ok()) {
        SH_TRY(StagingFile::open(folder, &file));
        SH_TRY(file->take_room(bytes, &begin));
        file_ = file;
    }
    *out = std::make_unique<StagingRange>(std::move(file), begin, bytes);
    return Status();
}

}  // namespace stagehand::transfer
