// Cuts: where a block is cut that the engine uses part by part.
#pragma once

#include <cstdint>
#include <vector>

namespace stagehand::policy {

struct Cut {
    uint64_t offset = 0;
    uint64_t bytes = 0;
};

// The largest part of a block for a runtime that has so much memory. The memory for the largest block that is in use
// brings nothing else, so a part is a 128th of the memory. Parts below 16 pages gain nothing more, but each use
// of a part costs the engine a call and the link a copy.
uint64_t largest_part(uint64_t budget_pages, uint64_t page_bytes);

// Cuts `bytes` at multiples of `unit_bytes` into parts of nearly equal size. A part has at most `largest_bytes`, or one
// unit if that is more. There are at most `most` parts, so parts are larger if that is needed. No argument is 0.
std::vector<Cut> cut(uint64_t bytes, uint64_t unit_bytes, uint64_t largest_bytes, uint64_t most);

}  // namespace stagehand::policy
