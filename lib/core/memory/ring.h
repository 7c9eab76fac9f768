// Ring: the pages that streamed parts share. Knows whose contents lie in each page, and whose uses must be waited for before it is
// written.
#pragma once

#include <cstdint>
#include <vector>

#include <stagehand/backend.h>

#include "core/memory/block.h"
#include "policy/pieces.h"

namespace stagehand::core {

// Visits each fence of a run of pages that `page_at(k)` gives, neighbours that share one once.
template <class PageAt, class Visit>
void each_fence(const policy::PageRun& run, PageAt&& page_at, Visit&& visit) {
    uint32_t last = kNone;
    for (uint32_t k = run.first; k < run.first + run.pages; k++) {
        const uint32_t fence = page_at(k).fence;
        if (fence == last || fence == kNone) continue;
        last = fence;
        visit(fence);
    }
}

class Ring {
public:
    struct Page {
        uint32_t contents = kNone;   // unit whose bytes lie, or will lie, here
        uint32_t fence = kNone;      // unit whose uses (and write-back) must have ended before the page is written: the last one
                                     // whose load was issued here. A cancelled load leaves it as it was.
    };

    uint32_t size() const { return static_cast<uint32_t>(pages_.size()); }
    Page& page(uint32_t index) { return pages_[index]; }
    // The k-th streamed page of a unit.
    Page& page_of(const Unit& unit, uint32_t k) { return pages_[wrap(uint64_t(unit.ring_offset) + k)]; }
    uint32_t wrap(uint64_t place) const { return static_cast<uint32_t>(place % pages_.size()); }

    // Physical pages, in order.
    std::vector<sh_backend_page>& handles() { return handles_; }

    // Forgets all contents; after everything that used the ring has finished.
    void reset(uint32_t pages) {
        pages_.assign(pages, Page{});
        launches_.clear();
    }

    // Units that are gone, whose uses have ended: pages of theirs are nobody's, and there is nothing of them to wait for.
    template <class IsGone>
    void forget(IsGone is_gone) {
        for (Page& page : pages_) {
            if (page.contents != kNone && is_gone(page.contents)) page.contents = kNone;
            if (page.fence != kNone && is_gone(page.fence)) page.fence = kNone;
        }
    }

    // Events that stand for launches of graphs that may still be using any page of the ring.
    std::vector<sh_backend_event>& launches() { return launches_; }
    void expect_launch() { launches_.reserve(launches_.size() + 1); }   // so that launched() cannot fail
    void launched(sh_backend_event done) {
        forget_launch(done);
        launches_.push_back(done);
    }
    void forget_launch(sh_backend_event done) { std::erase(launches_, done); }

private:
    std::vector<Page> pages_;
    std::vector<sh_backend_event> launches_;
    std::vector<sh_backend_page> handles_;
};

}  // namespace stagehand::core
