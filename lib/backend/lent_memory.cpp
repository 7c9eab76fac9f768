#include "backend/lent_memory.h"

#include <iterator>

#include "base/no_throw.h"
#include "base/size_text.h"

namespace stagehand {

Status LentMemory::take(uint64_t bytes, uint64_t alignment, uint64_t* out_address) {
    return no_throw([&] { return take_first(bytes, alignment, out_address); });
}

Status LentMemory::take_first(uint64_t bytes, uint64_t alignment, uint64_t* out_address) {
    const std::lock_guard lock(mutex_);
    for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
        const uint64_t begin = (gap->first + alignment - 1) / alignment * alignment, end = gap->first + gap->second;
        if (begin > end || bytes > end - begin) continue;
        if (begin + bytes < end) gaps_.emplace(begin + bytes, end - begin - bytes);
        if (begin > gap->first)
            gap->second = begin - gap->first;
        else
            gaps_.erase(gap);
        free_ -= bytes;
        *out_address = begin;
        return Status();
    }
    return Status(SH_ERROR_OUT_OF_DEVICE_MEMORY, "the device memory of the engine has no " + exact_size_text(bytes) +
                                                     " in one piece; " + exact_size_text(free_) + " of " +
                                                     exact_size_text(bytes_) + " are free");
}

Status LentMemory::give_back(uint64_t address, uint64_t bytes) {
    return no_throw([&] { return add_gap(address, bytes); });
}

Status LentMemory::add_gap(uint64_t address, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    auto gap = gaps_.emplace(address, bytes).first;
    free_ += bytes;
    if (const auto next = std::next(gap); next != gaps_.end() && address + bytes == next->first) {
        gap->second += next->second;
        gaps_.erase(next);
    }
    if (gap == gaps_.begin()) return Status();
    if (const auto before = std::prev(gap); before->first + before->second == address) {
        before->second += gap->second;
        gaps_.erase(gap);
    }
    return Status();
}

uint64_t LentMemory::free_bytes() const {
    const std::lock_guard lock(mutex_);
    return free_;
}

}  // namespace stagehand
