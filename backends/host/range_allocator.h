// RangeAllocator: hands out contiguous runs of a line of offsets, the lowest that fits first.
#pragma once

#include <cstdint>
#include <map>

namespace stagehand::host {

// The caller locks. The line is much longer than what is ever in use at once, so a run is found whatever the
// fragmentation.
class RangeAllocator {
public:
    explicit RangeAllocator(uint64_t length) : holes_{{0, length}} {}

    // False when no hole is long enough.
    bool take(uint64_t bytes, uint64_t* out_offset);
    // Makes sure that so many calls of give() need no memory. Throws std::bad_alloc.
    void prepare(uint64_t gives);
    // Throws std::bad_alloc, and has then changed nothing; not when prepared.
    void give(uint64_t offset, uint64_t bytes);

private:
    std::map<uint64_t, uint64_t> holes_;  // begin to end; neighbours are merged
    std::map<uint64_t, uint64_t> spare_;  // nodes for more of them, with any keys
};

}  // namespace stagehand::host
