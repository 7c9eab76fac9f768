// RangeAllocator: hands out contiguous runs of a range of offsets. The lowest run that fits comes first.
#pragma once

#include <cstdint>
#include <map>

namespace stagehand::host {

// The caller locks. The range is much longer than the runs in use, so a run is found at any fragmentation.
class RangeAllocator {
public:
    explicit RangeAllocator(uint64_t length) : holes_{{0, length}} {}

    // Returns false if no hole is long enough.
    bool take(uint64_t bytes, uint64_t* out_offset);
    // Makes sure that `gives` calls of give() allocate nothing. Throws std::bad_alloc.
    void prepare(uint64_t gives);
    // Throws std::bad_alloc without a change if no memory is left. Does not throw after prepare().
    void give(uint64_t offset, uint64_t bytes);

private:
    std::map<uint64_t, uint64_t> holes_;  // begin to end; neighbours are merged
    std::map<uint64_t, uint64_t> spare_;  // map nodes for more holes; their keys mean nothing
};

}  // namespace stagehand::host
