// Finds the missing bytes of a unit's streamed part, for a load into the present ring, or, in a capture, into the ring
// as the graph leaves it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/memory/registry.h"
#include "core/movement/load.h"

namespace stagehand::core {

// Adds pages [first, first + count) of the unit.
inline void add_range(const Unit& unit, uint64_t page_bytes, uint64_t first, uint64_t count, Load* load) {
    const uint64_t offset = first * page_bytes, end = std::min(unit.bytes, (first + count) * page_bytes);
    if (!load->ranges.empty() && load->ranges.back().offset + load->ranges.back().bytes == offset)
        load->ranges.back().bytes = end - load->ranges.back().offset;
    else
        load->ranges.push_back({offset, end - offset});
}

// Adds those of the first `most` streamed pages that do not hold the unit's bytes. `page_at(k)` gives a Ring::Page. The
// pages are added in runs with one fence each, and `last_use(unit)` tells fences apart by their order. A unit that is
// `whole` is loaded completely if any page is missing.
template <class PageAt, class LastUse>
void find_missing_streamed(const Unit& unit, uint32_t most, uint64_t page_bytes, PageAt&& page_at, LastUse&& last_use,
                           Load* load) {
    const uint32_t own = static_cast<uint32_t>(unit.own.size());
    const uint32_t count = std::min(unit.ring_pages, most);
    bool whole = false;
    for (uint32_t k = 0; unit.whole && k < unit.ring_pages && !whole; k++) whole = page_at(k).contents != load->unit;
    for (uint32_t k = 0; k < count; k++) {
        const auto& at = page_at(k);
        if (at.contents == load->unit && !whole) continue;
        const uint64_t fence = at.fence == kNone ? 0 : last_use(at.fence);
        auto& runs = load->runs;
        const bool joins = !runs.empty() && runs.back().first + runs.back().pages == k && runs.back().fence == fence;
        if (joins)
            runs.back().pages++;
        else
            runs.push_back({k, 1, fence});
        add_range(unit, page_bytes, own + k, 1, load);
    }
    policy::cut_load(load->runs);
}

}  // namespace stagehand::core
