#include "transfer/source/mapped_reader.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/log.h"
#include "base/plain_format.h"

namespace stagehand::transfer {
namespace {

constexpr int kPipeBytes = 256 << 10;

Status unreadable(const char* from, uint64_t bytes, uint64_t done, int error) {
    char text[256];
    plain_format(text, sizeof text,
                 "mapped memory cannot be read (did its file shrink?): wanted %" PRIu64 " bytes at %p, got %" PRIu64
                 ": %s",
                 bytes, static_cast<const void*>(from), done, std::strerror(error));
    return Status(SH_ERROR_SOURCE, text);
}

}  // namespace

void MappedReader::close_pipe() {
    for (platform::Descriptor& end : pipe_) (void)end.close();
}

Status MappedReader::read(const char* from, char* to, uint64_t bytes) {
    uint64_t done = 0;
    while (done < bytes) {
        const int64_t got = read_some(from + done, to + done, bytes - done);
        if (got < 0) return unreadable(from, bytes, done, static_cast<int>(-got));
        done += static_cast<uint64_t>(got);
    }
    return Status();
}

int64_t MappedReader::read_some(const char* from, char* to, uint64_t bytes) {
    while (vm_read_) {
        struct iovec local = {to, bytes};
        struct iovec remote = {const_cast<char*>(from), bytes};
        const ssize_t got = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
        if (got > 0) return got;
        if (got < 0 && errno == EINTR) continue;
        if (got == 0 || errno == EFAULT) return -EFAULT;
        // EPERM and ENOSYS come from a sandbox. ENOMEM may have several causes, and the pipe needs no memory except its
        // own.
        log_line(SH_LOG_INFO,
                 "the system refuses process_vm_readv (%s), so mapped sources are read through a pipe at less than "
                 "half the speed",
                 std::strerror(errno));
        vm_read_ = false;
    }
    return read_through_pipe(from, to, bytes);
}

int64_t MappedReader::read_through_pipe(const char* from, char* to, uint64_t bytes) {
    if (pipe_[0].own_number() < 0 || pipe_[1].own_number() < 0) {
        close_pipe();
        int ends[2];
        if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return -errno;
        for (const int i : {0, 1}) pipe_[i] = platform::Descriptor(ends[i]);
        if (!pipe_[0].is_open() || !pipe_[1].is_open()) return close_pipe(), -EMFILE;
        const int capacity = fcntl(pipe_[1].number(), F_SETPIPE_SZ, kPipeBytes);
        pipe_bytes_ = capacity > 0 ? static_cast<uint64_t>(capacity) : 4096;
    }
    ssize_t written = 0;
    do {
        written = write(pipe_[1].number(), from, std::min(bytes, pipe_bytes_));
    } while (written < 0 && errno == EINTR);
    if (written <= 0) return written < 0 ? -errno : -EFAULT;
    for (ssize_t taken = 0; taken < written;) {
        const ssize_t got = ::read(pipe_[0].number(), to + taken, static_cast<size_t>(written - taken));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            const int error = got < 0 ? errno : EIO;
            close_pipe();  // the bytes that are left in the pipe must not reach the next read
            return -error;
        }
        taken += got;
    }
    return written;
}

}  // namespace stagehand::transfer
