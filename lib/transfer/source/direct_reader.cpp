#include "transfer/source/direct_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

#include "base/log.h"
#include "transfer/source/file_reader.h"
#include "transfer/source/open_file.h"

namespace stagehand::transfer {
namespace {

constexpr uint64_t kReadBytes = 512 << 10;  // of one read into its target; several reads keep the queue of a disk full
constexpr uint64_t kBufferBytes = 64 << 10;
constexpr uint32_t kDepth = 32;

// Unaligned ends of a range, and ranges with an unaligned target, are read through a buffer.
void cut_through_buffer(const FileRange& range, uint64_t begin, uint64_t end, uint64_t alignment,
                        std::vector<DirectRead>* out) {
    while (begin < end) {
        const uint64_t offset = begin / alignment * alignment;
        const uint64_t stop = std::min(end, offset + kBufferBytes);
        DirectRead read;
        read.range = &range;
        read.offset = offset;
        read.bytes = (stop - offset + alignment - 1) / alignment * alignment;
        read.skip = begin - offset;
        read.wanted = stop - begin;
        read.to = range.to + (begin - range.offset);
        out->push_back(read);
        begin = stop;
    }
}

}  // namespace

void cut_direct(const FileRange& range, std::vector<DirectRead>* out_reads) {
    const uint64_t alignment = range.opened ? range.opened->offset_alignment : 4096;
    const uint64_t memory_alignment = range.opened ? range.opened->memory_alignment : 4096;
    const uint64_t end = range.offset + range.bytes;
    const uint64_t first = (range.offset + alignment - 1) / alignment * alignment;
    const uint64_t last = end / alignment * alignment;
    const uint64_t place = reinterpret_cast<uint64_t>(range.to) + (first - range.offset);
    if (first >= last || place % memory_alignment != 0) {
        cut_through_buffer(range, range.offset, end, alignment, out_reads);
        return;
    }
    cut_through_buffer(range, range.offset, first, alignment, out_reads);
    for (uint64_t at = first; at < last; at += kReadBytes) {
        DirectRead read;
        read.range = &range;
        read.offset = at;
        read.bytes = read.wanted = std::min(kReadBytes, last - at);
        read.to = range.to + (at - range.offset);
        read.in_place = true;
        out_reads->push_back(read);
    }
    cut_through_buffer(range, last, end, alignment, out_reads);
}

DirectReader::DirectReader(bool uring) : uring_(uring) {}

DirectReader::~DirectReader() { std::free(buffers_); }

bool DirectReader::make_buffers() {
    if (!buffers_) buffers_ = std::aligned_alloc(4096, kDepth * kBufferBytes);
    return buffers_ != nullptr;
}

Status DirectReader::read(std::span<const FileRange> ranges) {
    if (!make_buffers()) return Status(SH_ERROR_OUT_OF_HOST_MEMORY);
    reads_.clear();
    for (const FileRange& range : ranges) cut_direct(range, &reads_);
    if (ring_ && ring_->is_lost()) ring_.reset();
    if (uring_ && !ring_) {
        auto ring = std::make_unique<Uring>();
        if (const int error = ring->open(kDepth)) {
            uring_ = false;
            log_line(SH_LOG_INFO, "io_uring is not available (%s), so direct reads run one after the other",
                     std::strerror(error));
        } else {
            ring_ = std::move(ring);
        }
    }
    return ring_ ? read_by_ring() : read_one_by_one();
}

Status DirectReader::read_by_ring() {
    const auto buffer = [&](uint32_t tag) { return static_cast<char*>(buffers_) + tag * kBufferBytes; };
    return ring_->run(
        reads_.size(),
        [&](uint32_t tag, size_t i) {
            const DirectRead& read = reads_[i];
            ring_->add_read(tag, read.range->direct_file, read.in_place ? read.to : buffer(tag), read.bytes,
                            read.offset);
        },
        [&](uint32_t tag, size_t i, int64_t result) { return settle(reads_[i], buffer(tag), result); });
}

Status DirectReader::read_one_by_one() {
    char* const buffer = static_cast<char*>(buffers_);
    for (const DirectRead& read : reads_) {
        ssize_t got = 0;
        do {
            got = pread(read.range->direct_file, read.in_place ? read.to : buffer, read.bytes,
                        static_cast<off_t>(read.offset));
        } while (got < 0 && errno == EINTR);
        SH_TRY(settle(read, buffer, got < 0 ? -errno : got));
    }
    return Status();
}

// A direct read is short at the end of the file, or for a reason that only the page cache can explain. The missing
// bytes are read through the page cache, which reports the end of the file and errors reliably.
Status DirectReader::settle(const DirectRead& read, const char* buffer, int64_t result) {
    const uint64_t got = result > static_cast<int64_t>(read.skip) ? static_cast<uint64_t>(result) - read.skip : 0;
    const uint64_t usable = std::min(got, read.wanted);
    if (!read.in_place && usable > 0) std::memcpy(read.to, buffer + read.skip, usable);
    if (usable == read.wanted) return Status();
    FileRange rest = *read.range;
    rest.offset = read.offset + read.skip + usable;
    rest.to = read.to + usable;
    rest.bytes = read.wanted - usable;
    return read_buffered(rest);
}

}  // namespace stagehand::transfer
