// Shape: facts that every part of the planner needs, derived from a problem once: pages of each unit, order of first
// use, sums.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/plan.h"

namespace stagehand::policy {

// True if a plan can be made at all: page size and link are above zero and finite, every use names a unit, no
// slowdown is below 1 or infinite, and all used units together have fewer than 2^31 pages.
bool well_formed(const Problem& problem);

struct Shape {
    explicit Shape(const Problem& problem);  // the problem must be well formed and outlive the shape

    uint32_t uses() const { return static_cast<uint32_t>(problem->trace.size()); }
    // What a page of the unit costs when it is streamed, in sixteenths of the time for a full page on the link. It is
    // rounded, because the bytes between packed blocks should make no difference to a plan.
    uint64_t page_cost(uint32_t unit) const {
        const Unit& of = problem->units[unit];
        return of.bytes ? static_cast<uint64_t>(of.link_time() * 16 / static_cast<double>(of.bytes) + 0.5) : 16;
    }
    // The bytes that a copy of these pages moves.
    uint64_t link_bytes_of_pages(uint32_t unit, uint32_t first, uint32_t count) const;
    double copy_ns(uint32_t unit, uint64_t bytes) const {
        if (bytes == 0) return 0;
        return static_cast<double>(problem->copy_latency_ns) +
               static_cast<double>(bytes) * problem->units[unit].slowdown / problem->link_bytes_per_ns;
    }

    double back_ns(uint64_t bytes) const {
        return static_cast<double>(problem->copy_latency_ns) + static_cast<double>(bytes) / problem->back_bytes_per_ns;
    }

    const Problem* problem;
    uint32_t held;                        // max_held, at least 1
    std::vector<uint32_t> pages;          // for each unit; 0 for units that the trace leaves out
    std::vector<uint32_t> order;          // the units that have pages, by first use
    std::vector<double> unit_compute_ns;  // for each unit, all its uses in a step
    uint64_t total_pages = 0;             // of the units in `order`
    uint64_t total_bytes = 0;
    double total_link_time = 0;  // Unit::link_time()
    double compute_ns = 0;       // of a step
    bool each_once = true;       // no unit with pages is used twice in a step
    bool changes = false;        // write-backs of some unit in `order` take time
    bool has_whole = false;      // some unit in `order` is whole
    bool even = true;            // all bytes of the units in `order` are copied, at the speed of the link
};

// The most pages that any `held` consecutive uses need together, for the given pages of each unit. The trace is a
// cycle.
struct WindowNeed {
    uint64_t pages = 0;
    uint32_t unit = 0;  // the largest unit in that window
};
WindowNeed widest_window(const Shape& shape, std::span<const uint32_t> pages);

// True if the plan has places for all pages of all units, within its ring.
bool covers_the_units(const Shape& shape, const Plan& plan);

}  // namespace stagehand::policy
