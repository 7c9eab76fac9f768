// What every part of the planner derives from a problem once: pages of each unit, order of first use, sums.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/plan.h"

namespace stagehand::policy {

// True if a plan can be asked for at all: page size and link above zero and finite, every use names a unit,
// and all units that are used together are fewer than 2^31 pages.
bool well_formed(const Problem& problem);

struct Shape {
    explicit Shape(const Problem& problem);  // which must be well formed and outlive the shape

    uint32_t uses() const { return static_cast<uint32_t>(problem->trace.size()); }
    // How much of a unit is copied when it streams, from 0 to 16: rounded, since what lies between packed blocks is
    // no difference to plan by.
    uint64_t copied_sixteenths(uint32_t unit) const {
        const Unit& of = problem->units[unit];
        return of.bytes ? (of.link_bytes() * 16 + of.bytes / 2) / of.bytes : 16;
    }
    // What a copy of these pages brings.
    uint64_t link_bytes_of_pages(uint32_t unit, uint32_t first, uint32_t count) const;
    double copy_ns(uint64_t bytes) const {
        if (bytes == 0) return 0;
        return static_cast<double>(problem->copy_latency_ns) +
               static_cast<double>(bytes) / problem->link_bytes_per_ns;
    }

    const Problem* problem;
    uint32_t held;                        // max_held, at least 1
    std::vector<uint32_t> pages;          // of each unit; 0 for those that the trace leaves out
    std::vector<uint32_t> order;          // the units that have pages, by first use
    std::vector<double> unit_compute_ns;  // of each unit, all its uses in a step
    uint64_t total_pages = 0;             // of the units in `order`
    uint64_t total_bytes = 0;
    uint64_t total_link_bytes = 0;
    double compute_ns = 0;   // of a step
    bool each_once = true;   // no unit with pages is used twice in a step
    bool has_whole = false;  // some unit in `order` is whole
};

// The most pages that any `held` consecutive uses need together, given each unit's pages; the trace is a
// cycle.
struct WindowNeed {
    uint64_t pages = 0;
    uint32_t unit = 0;  // the largest unit of that window
};
WindowNeed widest_window(const Shape& shape, std::span<const uint32_t> pages);

}  // namespace stagehand::policy
