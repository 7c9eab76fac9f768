// Ring: the pages that the streamed parts share. It knows whose contents lie in each page, and whose uses must have
// ended before a page is written.
#pragma once

#include <cstdint>
#include <vector>

#include <stagehand/backend.h>

#include "core/memory/block.h"
#include "policy/pieces.h"

namespace stagehand::core {

// Calls `visit` for each fence in a run of pages that `page_at(k)` gives. Neighbours with the same fence are visited
// once.
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
        uint32_t contents = kNone;  // the unit whose bytes lie, or will lie, here
        // The unit whose uses and write-back must have ended before the page is written: the last unit whose load was
        // issued here. A cancelled load does not change the fence.
        uint32_t fence = kNone;
    };

    uint32_t size() const { return static_cast<uint32_t>(pages_.size()); }
    Page& page(uint32_t index) { return pages_[index]; }
    // The k-th streamed page of a unit.
    Page& page_of(const Unit& unit, uint32_t k) { return pages_[wrap(uint64_t(unit.ring_offset) + k)]; }
    uint32_t wrap(uint64_t place) const { return static_cast<uint32_t>(place % pages_.size()); }

    // Physical pages, in order.
    std::vector<sh_backend_page>& handles() { return handles_; }

    // Forgets all contents. The caller ensures that all uses of the ring have ended.
    void reset(uint32_t pages) {
        pages_.assign(pages, Page{});
        launches_.clear();
    }

    // The units are gone and their uses have ended. Their pages belong to nobody, and nothing of them must be waited
    // for.
    template <class IsGone>
    void forget(IsGone is_gone) {
        for (Page& page : pages_) {
            if (page.contents != kNone && is_gone(page.contents)) page.contents = kNone;
            if (page.fence != kNone && is_gone(page.fence)) page.fence = kNone;
        }
    }

    // Events of graph launches that may still use any page of the ring.
    std::vector<sh_backend_event>& launches() { return launches_; }
    void expect_launch() { launches_.reserve(launches_.size() + 1); }  // so that launched() cannot fail
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
