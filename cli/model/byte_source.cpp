// Reads files by stat, open and pread.
#include "byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "error.h"

namespace stagehand::cli::model {

namespace {

[[noreturn]] void refuse(const std::string& path, std::string_view field, std::string_view what, int error) {
    throw ModelError(path, field, std::string(what) + ": " + std::generic_category().message(error), error);
}

std::string kind_of(mode_t mode) {
    if (S_ISDIR(mode)) return "a directory";
    if (S_ISFIFO(mode)) return "a fifo";
    if (S_ISSOCK(mode)) return "a socket";
    return "a device";
}

void check_regular(const std::string& path, const struct stat& status) {
    if (!S_ISREG(status.st_mode))
        throw ModelError(path, "file", "is " + kind_of(status.st_mode) + ", not a regular file");
}

}  // namespace

FileStamp stamp_of(int descriptor, const std::string& path) {
    struct stat status {};
    if (::fstat(descriptor, &status) != 0) refuse(path, "file", "cannot be examined", errno);
    check_regular(path, status);
    return {status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size), status.st_mtim.tv_sec,
            status.st_mtim.tv_nsec};
}

FileSource::FileSource(const std::string& path) : path_(path) {
    if (path.find('\0') != std::string::npos) throw ModelError(path, "file", "the name holds a NUL byte");
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) refuse(path, "file", "cannot be opened", errno);
    check_regular(path, status);
    // Checked again after the open, because another file may have the name by now. O_NONBLOCK, so that a fifo that took
    // the file's place does not hang.
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd_ < 0) refuse(path, "file", "cannot be opened", errno);
    try {
        stamp_ = stamp_of(fd_, path);
    } catch (const ModelError&) {
        ::close(fd_);
        throw;
    }
}

FileSource::~FileSource() { ::close(fd_); }

void FileSource::read(std::uint64_t offset, std::span<char> to) {
    std::size_t done = 0;
    while (done < to.size()) {
        const ssize_t got = ::pread(fd_, to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
        if (got < 0 && errno == EINTR) continue;
        const std::string where = "byte " + std::to_string(offset + done);
        if (got < 0) refuse(path_, where, "cannot be read", errno);
        if (got == 0) {
            throw ModelError(path_, where,
                             "the file ends here, but had " + std::to_string(size()) +
                                 " bytes when it was opened: it shrank while it was read");
        }
        done += static_cast<std::size_t>(got);
    }
}

void MemorySource::read(std::uint64_t offset, std::span<char> to) {
    if (offset > bytes_.size() || to.size() > bytes_.size() - offset)
        throw ModelError(name_, "byte " + std::to_string(offset), "lies outside the data");
    std::memcpy(to.data(), bytes_.data() + offset, to.size());
}

}  // namespace stagehand::cli::model
