#include "support/pinned_ranges.h"

#include <unistd.h>

#include <cinttypes>
#include <iterator>
#include <mutex>

#include "support/last_error.h"

namespace stagehand::support {
namespace {

uint64_t page_size() {
    static const uint64_t size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    return size;
}

}  // namespace

sh_status PinnedRanges::add(const void* memory, uint64_t bytes) {
    const uint64_t given = reinterpret_cast<uint64_t>(memory);
    uint64_t end = 0;
    if (!memory || bytes == 0 || __builtin_add_overflow(given, bytes, &end) ||
        __builtin_add_overflow(end, page_size() - 1, &end)) {
        return fail(SH_ERROR_INVALID_ARGUMENT, "cannot pin %" PRIu64 " bytes at %p: the range is not valid", bytes,
                    memory);
    }
    const uint64_t begin = given / page_size() * page_size();
    end = end / page_size() * page_size();
    std::unique_lock lock(mutex_);
    const auto next = ranges_.lower_bound(begin);
    if ((next != ranges_.end() && next->first < end) ||
        (next != ranges_.begin() && std::prev(next)->second.end > begin)) {
        return fail(SH_ERROR_INVALID_ARGUMENT, "%" PRIu64 " bytes at %p: a part of these pages is pinned already",
                    bytes, memory);
    }
    if (limit_ && end - begin > limit_ - bytes_) {
        return fail(SH_ERROR_OUT_OF_HOST_MEMORY, "cannot pin %" PRIu64 " bytes: %" PRIu64 " of %" PRIu64 " are pinned",
                    end - begin, bytes_, limit_);
    }
    ranges_.emplace(begin, Range{end, given});
    bytes_ += end - begin;
    return SH_OK;
}

sh_status PinnedRanges::remove(const void* memory) {
    const uint64_t given = reinterpret_cast<uint64_t>(memory);
    std::unique_lock lock(mutex_);
    const auto range = ranges_.find(given / page_size() * page_size());
    if (range == ranges_.end() || range->second.given != given) {
        return fail(SH_ERROR_INVALID_ARGUMENT, "the memory at %p was not registered", memory);
    }
    bytes_ -= range->second.end - range->first;
    ranges_.erase(range);
    return SH_OK;
}

bool PinnedRanges::contains(const void* memory, uint64_t bytes) const {
    uint64_t at = reinterpret_cast<uint64_t>(memory);
    const uint64_t end = at + bytes;
    std::shared_lock lock(mutex_);
    do {
        auto range = ranges_.upper_bound(at);
        if (range == ranges_.begin() || std::prev(range)->second.end <= at) return false;
        at = std::prev(range)->second.end;
    } while (at < end);
    return true;
}

uint64_t PinnedRanges::bytes() const {
    std::shared_lock lock(mutex_);
    return bytes_;
}

}  // namespace stagehand::support
