#include "host/range_allocator.h"

#include <iterator>

namespace stagehand::host {

bool RangeAllocator::take(uint64_t bytes, uint64_t* out_offset) {
    for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
        const auto [begin, end] = *hole;
        if (end - begin < bytes) continue;
        *out_offset = begin;
        if (end - begin == bytes) {
            holes_.erase(hole);
        } else {
            auto node = holes_.extract(hole);
            node.key() = begin + bytes;
            holes_.insert(std::move(node));
        }
        return true;
    }
    return false;
}

void RangeAllocator::prepare(uint64_t gives) {
    for (uint64_t key = spare_.empty() ? 0 : spare_.rbegin()->first + 1; spare_.size() < gives; ++key)
        spare_.emplace_hint(spare_.end(), key, 0);
}

void RangeAllocator::give(uint64_t offset, uint64_t bytes) {
    const uint64_t end = offset + bytes;
    const auto after = holes_.lower_bound(offset);
    const auto before = after == holes_.begin() ? holes_.end() : std::prev(after);
    const bool joins_before = before != holes_.end() && before->second == offset;
    const bool joins_after = after != holes_.end() && after->first == end;
    if (joins_before) {
        before->second = joins_after ? after->second : end;
        if (joins_after) holes_.erase(after);
    } else if (joins_after) {
        auto node = holes_.extract(after);
        node.key() = offset;
        holes_.insert(std::move(node));
    } else {
        prepare(1);
        auto node = spare_.extract(spare_.begin());
        node.key() = offset;
        node.mapped() = end;
        holes_.insert(std::move(node));
    }
}

}  // namespace stagehand::host
