#include "transfer/source/file_reader.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include <unistd.h>

#include "platform/page_cache.h"
#include "transfer/source/open_file.h"

namespace stagehand::transfer {
namespace {

Status read_failed(const FileRange& range, uint64_t done, int error) {
    char name[512];
    return Status(SH_ERROR_SOURCE, std::string(file_name(range.file, name, sizeof name)) + ": cannot read " +
                                       std::to_string(range.bytes) + " bytes at offset " +
                                       std::to_string(range.offset) + ", got " + std::to_string(done) + ": " +
                                       std::strerror(error));
}

Status lost(const FileRange& range) {
    return Status(SH_ERROR_SOURCE, "cannot read " + std::to_string(range.bytes) + " bytes at offset " +
                                       std::to_string(range.offset) + " of a file of inode " +
                                       std::to_string(range.opened->inode) +
                                       ": the process has closed the library's descriptor of that file");
}

Status shrank(const FileRange& range, uint64_t done) {
    char name[512];
    return Status(SH_ERROR_SOURCE, "file shrank: " + std::string(file_name(range.file, name, sizeof name)) +
                                       ": wanted " + std::to_string(range.bytes) + " bytes at offset " +
                                       std::to_string(range.offset) + ", got " + std::to_string(done));
}

}  // namespace

Status read_buffered(const FileRange& range) {
    uint64_t done = 0;
    while (done < range.bytes) {
        const ssize_t got =
            pread(range.file, range.to + done, range.bytes - done, static_cast<off_t>(range.offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return read_failed(range, done, errno);
        if (got == 0) return shrank(range, done);
        done += static_cast<uint64_t>(got);
    }
    return Status();
}

void FileReader::add(const Source& source, uint64_t offset, char* to, uint64_t bytes) {
    const uint64_t at = source.file_offset + offset;  // cannot overflow: open_source() has checked it
    if (!ranges_.empty()) {
        FileRange& last = ranges_.back();
        if (last.file == source.file && last.offset + last.bytes == at && last.to + last.bytes == to) {
            last.bytes += bytes;
            return;
        }
    }
    ranges_.push_back({source.opened, source.file, options_.direct ? source.direct_file : -1, at, to, bytes});
}

Status FileReader::read() {
    missing_.clear();
    for (const FileRange& range : ranges_) SH_TRY(read_or_defer(range));
    ranges_.clear();
    if (missing_.empty()) return Status();
    if (!direct_) direct_ = std::make_unique<DirectReader>(options_.uring);
    return direct_->read(missing_);
}

// A range is read through the page cache if the file system cannot tell whether it is cached, because it may well be. A
// query of what is cached costs a few percent of the time of copying the range. So the kernel is queried only while the
// last range of the file was missing from the cache. Otherwise the range is read at once, without waiting. If that
// guess is wrong, the kernel reads the range into the cache.
Status FileReader::read_or_defer(const FileRange& range) {
    if (range.opened && range.opened->file.is_lost()) return lost(range);
    if (range.direct_file < 0 || range.opened->direct_file.is_lost()) return read_buffered(range);
    const bool guess = range.opened && range.opened->cached.load(std::memory_order_relaxed);
    if (guess) {
        const ssize_t got = platform::read_cached(range.file, range.to, range.bytes, range.offset);
        if (got == static_cast<ssize_t>(range.bytes)) return Status();
        range.opened->cached.store(false, std::memory_order_relaxed);
        return read_buffered(range);
    }
    const auto probe = options_.cachestat ? platform::CacheProbe::kBest : platform::CacheProbe::kSample;
    const platform::Cached cached = platform::in_page_cache(range.file, range.offset, range.bytes, probe);
    if (cached == platform::Cached::kNo) {
        missing_.push_back(range);
        return Status();
    }
    if (range.opened && cached == platform::Cached::kYes) range.opened->cached.store(true, std::memory_order_relaxed);
    return read_buffered(range);
}

}  // namespace stagehand::transfer
