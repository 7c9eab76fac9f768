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

Status FileMove::move_by_ring(StagingRange& range, bool writing, char* memory, uint64_t bytes, uint64_t offset) {
    const int file = range.file().descriptor();
    const auto begin_of = [](size_t i) { return i * kRequestBytes; };
    const auto bytes_of = [&](size_t i) { return std::min(kRequestBytes, bytes - begin_of(i)); };
    return ring_.run((bytes + kRequestBytes - 1) / kRequestBytes,
                     [&](uint32_t tag, size_t i) {
                         const uint64_t at = begin_of(i), place = range.begin() + offset + at;
                         if (writing)
                             ring_.add_write(tag, file, memory + at, bytes_of(i), place);
                         else
                             ring_.add_read(tag, file, memory + at, bytes_of(i), place);
                     },
                     // What is missing, for whatever reason, is moved by plain calls. They tell the error.
                     [&](uint32_t, size_t i, int64_t result) {
                         const uint64_t done = result > 0 ? std::min(static_cast<uint64_t>(result), bytes_of(i)) : 0;
                         const uint64_t at = begin_of(i) + done;
                         return done < bytes_of(i)
                                    ? move_rest(range, writing, memory + at, bytes_of(i) - done, offset + at)
                                    : Status();
                     });
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
