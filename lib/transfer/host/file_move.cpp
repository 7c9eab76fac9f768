#include "transfer/host/file_move.h"

#include <algorithm>
#include <cerrno>

#include <unistd.h>

#include "base/no_signals.h"

namespace stagehand::transfer {
namespace {

constexpr uint32_t kRequests = 16;  // that are under way
constexpr uint64_t kRequestBytes = 512 << 10;

}  // namespace

Status FileMove::write(StagingRange& range, void* memory, uint64_t bytes, uint64_t offset) {
    const NoSignals quiet;
    return move(range, true, static_cast<char*>(memory), bytes, offset);
}

Status FileMove::read(StagingRange& range, void* memory, uint64_t bytes, uint64_t offset) {
    return move(range, false, static_cast<char*>(memory), bytes, offset);
}

bool FileMove::has_ring() {
    if (state_ == Ring::unknown) state_ = ring_.open(kRequests) == 0 ? Ring::open : Ring::refused;
    return state_ == Ring::open && !ring_.is_lost();
}

Status FileMove::move(StagingRange& range, bool writing, char* memory, uint64_t bytes, uint64_t offset) {
    return has_ring() ? move_by_ring(range, writing, memory, bytes, offset)
                      : move_rest(range, writing, memory, bytes, offset);
}

// No request is under way when the call returns.
Status FileMove::move_by_ring(StagingRange& range, bool writing, char* memory, uint64_t bytes, uint64_t offset) {
    struct Request {
        uint64_t at = 0, bytes = 0;
    } requests[kRequests];
    uint32_t idle[kRequests], free = kRequests;
    for (uint32_t i = 0; i < kRequests; i++) idle[i] = i;
    const uint64_t begin = range.begin() + offset;
    Status status;
    for (uint64_t next = 0; next < bytes || free < kRequests;) {
        while (status.ok() && free && next < bytes) {
            const uint32_t tag = idle[--free];
            requests[tag] = {next, std::min(kRequestBytes, bytes - next)};
            if (writing)
                ring_.add_write(tag, range.file().descriptor(), memory + next, requests[tag].bytes, begin + next);
            else
                ring_.add_read(tag, range.file().descriptor(), memory + next, requests[tag].bytes, begin + next);
            next += requests[tag].bytes;
        }
        if (free == kRequests) break;
        uint32_t tag = 0;
        int64_t result = 0;
        ring_.wait(&tag, &result);
        idle[free++] = tag;
        // What is missing, for whatever reason, is moved by plain calls. They tell the error.
        const Request& request = requests[tag];
        const uint64_t done = result > 0 ? std::min(static_cast<uint64_t>(result), request.bytes) : 0;
        if (status.ok() && done < request.bytes)
            status =
                move_rest(range, writing, memory + request.at + done, request.bytes - done, offset + request.at + done);
    }
    return status;
}

Status FileMove::move_rest(StagingRange& range, bool writing, char* memory, uint64_t bytes, uint64_t offset) {
    bool direct = true;
    for (uint64_t at = 0; at < bytes;) {
        const auto where = static_cast<off_t>(range.begin() + offset + at);
        const ssize_t moved = writing ? pwrite(range.file().descriptor(), memory + at, bytes - at, where)
                                      : pread(range.file().descriptor(), memory + at, bytes - at, where);
        if (moved > 0) {
            at += static_cast<uint64_t>(moved);
        } else if (moved < 0 && errno == EINVAL && direct) {
            direct = false;  // also what remains after a part that is no whole block
            range.file().give_up_direct();
        } else if (moved == 0 || errno != EINTR) {
            return range.file().failed(writing, moved == 0 ? EIO : errno);
        }
    }
    return Status();
}

}  // namespace stagehand::transfer
