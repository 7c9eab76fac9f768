// FreeSpace: the unused parts of the chunks that allocations share.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/occupancy/page.h"

namespace stagehand::core {

// A range of addresses that is one piece of device memory.
struct Chunk {
    uint64_t address = 0, bytes = 0;
};

// Only bookkeeping. Functions that may throw change nothing then.
class FreeSpace {
public:
    // Adds a chunk that nobody uses, or a part of one that is used no more. Neighbours in the chunk become one.
    void give(const Chunk& chunk, uint64_t address, uint64_t bytes);
    // Takes the smallest free part that fits. Returns 0 if there is none. Never throws.
    uint64_t take(uint64_t bytes) noexcept;
    // Removes a chunk that is free as a whole.
    void remove(const Chunk& chunk) noexcept;
    void add_to(std::vector<AddressRange>* ranges) const;

private:
    using ByAddress = std::map<uint64_t, uint64_t>;

    ByAddress::node_type extract(ByAddress::iterator at) noexcept;

    ByAddress by_address_;                             // to the bytes
    std::set<std::pair<uint64_t, uint64_t>> by_size_;  // bytes and address
};

}  // namespace stagehand::core
