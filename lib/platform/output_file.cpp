#include "platform/output_file.h"

#include <algorithm>
#include <cerrno>

#include "base/no_signals.h"

namespace stagehand::platform {
namespace {

constexpr size_t kMostAdded = 64 << 10;

}  // namespace

int OutputFile::open(const char* path) {
    added_.reserve(kMostAdded);  // before anything has begun: a file that is open finds room for what is added
    file_ = Descriptor(::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0666));
    return file_.is_open() ? 0 : errno;
}

int OutputFile::add(std::string_view text) {
    if (!added_.empty() && added_.size() + text.size() > kMostAdded)
        if (const int error = flush()) return error;
    added_ += text;
    return 0;
}

int OutputFile::flush() noexcept {
    const NoSignals quiet;
    size_t done = 0;
    int error = !added_.empty() && file_.is_lost() ? EBADF : 0;
    while (done < added_.size() && !error) {
        const ssize_t written = ::write(file_.number(), added_.data() + done, added_.size() - done);
        if (written >= 0)
            done += static_cast<size_t>(written);
        else if (errno != EINTR)
            error = errno;
    }
    added_.erase(0, done);
    return error;
}

int OutputFile::close() noexcept {
    if (!is_open()) return 0;
    const int unwritten = flush();
    added_.clear();
    const int unclosed = file_.close() == 0 ? 0 : errno;
    return unwritten ? unwritten : unclosed;
}

void OutputFile::abandon() noexcept {
    added_.clear();
    (void)file_.close();
}

}  // namespace stagehand::platform
