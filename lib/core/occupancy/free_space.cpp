#include "core/occupancy/free_space.h"

#include <iterator>

namespace stagehand::core {

FreeSpace::ByAddress::node_type FreeSpace::extract(ByAddress::iterator at) noexcept {
    by_size_.erase(by_size_.find({at->second, at->first}));
    return by_address_.extract(at);
}

void FreeSpace::give(const Chunk& chunk, uint64_t address, uint64_t bytes) {
    const uint64_t end = chunk.address + chunk.bytes;
    auto next = by_address_.lower_bound(address);
    const bool joins_next = next != by_address_.end() && next->first == address + bytes && next->first < end;
    const auto before = next == by_address_.begin() ? by_address_.end() : std::prev(next);
    const bool joins_before =
        before != by_address_.end() && before->first >= chunk.address && before->first + before->second == address;
    const uint64_t begin = joins_before ? before->first : address;
    const uint64_t joined = bytes + (joins_before ? before->second : 0) + (joins_next ? next->second : 0);
    // All that may throw comes first.
    const auto sized = by_size_.emplace(joined, begin).first;
    if (joins_before) {
        by_size_.erase(by_size_.find({before->second, begin}));
        before->second = joined;
    } else {
        try {
            by_address_.emplace_hint(next, begin, joined);
        } catch (...) {
            by_size_.erase(sized);
            throw;
        }
    }
    if (joins_next) extract(next);
}

uint64_t FreeSpace::take(uint64_t bytes) noexcept {
    const auto found = by_size_.lower_bound({bytes, 0});
    if (found == by_size_.end()) return 0;
    const auto [size, address] = *found;
    auto sized = by_size_.extract(found);
    auto placed = by_address_.extract(address);
    if (size == bytes) return address;
    sized.value() = {size - bytes, address + bytes};
    placed.key() = address + bytes;
    placed.mapped() = size - bytes;
    by_size_.insert(std::move(sized));
    by_address_.insert(std::move(placed));
    return address;
}

void FreeSpace::add_to(std::vector<AddressRange>* ranges) const {
    for (const auto& [address, bytes] : by_address_) ranges->push_back({address, address + bytes});
}

void FreeSpace::remove(const Chunk& chunk) noexcept { extract(by_address_.find(chunk.address)); }

}  // namespace stagehand::core
