// The cut of one load into copies. The recurrence and the code that issues the copies use the same cut.
#pragma once

#include <cstdint>
#include <vector>

namespace stagehand::policy {

inline constexpr uint32_t most_pieces_per_load = 4;

// Consecutive pages of one unit that may be overwritten at the same time.
struct PageRun {
    uint32_t first = 0;  // index in the unit's streamed part
    uint32_t pages = 0;
    uint64_t fence = 0;  // grows with time, such as the number of the use that must have ended; 0: nothing to wait for

    bool operator==(const PageRun&) const = default;
};

// Turns the missing runs of a load into the copies to issue, in the order to issue them. The runs must be disjoint and
// in ascending order of pages. The copy that may start first comes first, so that no copy stands behind a later fence.
// Neighbours with one fence become one copy. If there are more than `most_pieces_per_load` copies, neighbours are
// merged under the later fence. Merges that delay the fewest pages come first. Runs with valid pages between them are
// never merged, so many separate runs stay many copies.
void cut_load(std::vector<PageRun>& runs);

}  // namespace stagehand::policy
