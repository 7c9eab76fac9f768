#include "policy/pieces.h"

#include <algorithm>
#include <cstddef>

namespace stagehand::policy {

namespace {

bool touch(const PageRun& a, const PageRun& b) { return a.first + a.pages == b.first; }

// The pages that a merge delays: those with the earlier fence.
uint32_t held_up(const PageRun& a, const PageRun& b) { return a.fence < b.fence ? a.pages : b.pages; }

void absorb(PageRun& into, const PageRun& next) {
    into.pages += next.pages;
    into.fence = std::max(into.fence, next.fence);
}

// Merges touching runs in one pass, if `joins` accepts the group so far and the next run.
template <typename Joins>
void merge_pass(std::vector<PageRun>& runs, Joins joins) {
    size_t last = 0;
    for (size_t k = 1; k < runs.size(); k++) {
        if (touch(runs[last], runs[k]) && joins(runs[last], runs[k]))
            absorb(runs[last], runs[k]);
        else
            runs[++last] = runs[k];
    }
    runs.resize(last + 1);
}

}  // namespace

void cut_load(std::vector<PageRun>& runs) {
    if (runs.size() > 1) merge_pass(runs, [](const PageRun& a, const PageRun& b) { return a.fence == b.fence; });
    // A large part over hundreds of small ones is first cut coarsely, so that the time stays linear.
    constexpr size_t coarse = 4 * most_pieces_per_load;
    if (runs.size() > coarse) {
        uint64_t total = 0;
        for (const PageRun& run : runs) total += run.pages;
        merge_pass(runs, [&](const PageRun& a, const PageRun&) { return uint64_t{a.pages} * coarse < total; });
    }
    while (runs.size() > most_pieces_per_load) {
        size_t best = runs.size();
        for (size_t k = 0; k + 1 < runs.size(); k++)
            if (touch(runs[k], runs[k + 1]) &&
                (best == runs.size() || held_up(runs[k], runs[k + 1]) < held_up(runs[best], runs[best + 1])))
                best = k;
        if (best == runs.size()) break;
        absorb(runs[best], runs[best + 1]);
        runs.erase(runs.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    if (runs.size() > 1)
        std::sort(runs.begin(), runs.end(), [](const PageRun& a, const PageRun& b) {
            return a.fence != b.fence ? a.fence < b.fence : a.first < b.first;
        });
}

}  // namespace stagehand::policy
