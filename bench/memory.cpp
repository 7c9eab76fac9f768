#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "exit_code.h"
#include "interrupt.h"
#include "model/quantity.h"
#include "model/text.h"

namespace stagehand::cli::bench {

namespace {

char* map(int file, std::uint64_t bytes) {
    void* memory = file < 0 ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                            : mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) {
        throw CommandError(ExitCode::device,
                           fmt::format("mapping {} of {}: {}", model::format_bytes(bytes),
                                       file < 0 ? "memory" : "the scratch file", std::strerror(errno)));
    }
    return static_cast<char*>(memory);
}

std::string folder_or_default(const std::string& folder) {
    if (!folder.empty()) return folder;
    const char* temporary = std::getenv("TMPDIR");
    return temporary != nullptr && *temporary != '\0' ? temporary : "/tmp";
}

// Opens a file without a name if the file system supports that; otherwise removes the name at once.
int open_nameless(const std::string& folder) {
    const int file = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
    std::string name = folder + "/stagehand-bench-XXXXXX";
    const int named = mkostemp(name.data(), O_CLOEXEC);
    if (named >= 0) unlink(name.c_str());
    return named;
}

[[noreturn]] void fail(const std::string& folder, std::uint64_t bytes, int error) {
    throw CommandError(ExitCode::output, fmt::format("scratch file of {} in {}: {}", model::format_bytes(bytes),
                                                     model::printable(folder), std::strerror(error)));
}

}  // namespace

PlainMemory::PlainMemory(std::uint64_t bytes) : memory_(map(-1, bytes)), bytes_(bytes) {}

PlainMemory::PlainMemory(int file, std::uint64_t bytes) : memory_(map(file, bytes)), bytes_(bytes) {}

PlainMemory::~PlainMemory() { munmap(memory_, bytes_); }

ScratchFile::ScratchFile(const std::string& folder, std::uint64_t bytes) : bytes_(bytes) {
    const std::string where = folder_or_default(folder);
    descriptor_ = open_nameless(where);
    if (descriptor_ < 0) fail(where, bytes, errno);
    try {
        write_all(where);
    } catch (...) {
        close(descriptor_);
        throw;
    }
}

ScratchFile::~ScratchFile() { close(descriptor_); }

void ScratchFile::write_all(const std::string& folder) {
    // Allocates the space first, so that a full disk is reported before gigabytes are written.
    if (const int error = posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes_)); error != 0)
        fail(folder, bytes_, error);
    std::vector<char> piece(std::size_t{4} << 20);
    for (std::size_t i = 0; i < piece.size(); ++i) piece[i] = static_cast<char>(i * 31 >> 3);
    for (std::uint64_t at = 0; at < bytes_ && interrupted() == 0;) {
        const ssize_t written = pwrite(descriptor_, piece.data(), std::min<std::uint64_t>(piece.size(), bytes_ - at),
                                       static_cast<off_t>(at));
        if (written < 0) fail(folder, bytes_, errno);
        at += static_cast<std::uint64_t>(written);
    }
    if (interrupted() == 0 && fdatasync(descriptor_) != 0) fail(folder, bytes_, errno);
}

}  // namespace stagehand::cli::bench
