#include "policy/shape.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace stagehand::policy {

namespace {

constexpr uint64_t most_pages = uint64_t{1} << 31;

uint64_t pages_of(uint64_t bytes, uint64_t page_bytes) { return bytes / page_bytes + (bytes % page_bytes != 0); }

// The number of gap bytes among the unit's first `end` bytes.
uint64_t gap_bytes_before(std::span<const Gap> gaps, uint64_t end) {
    auto after = std::partition_point(gaps.begin(), gaps.end(), [&](const Gap& gap) { return gap.offset < end; });
    if (after == gaps.begin()) return 0;
    const Gap& last = *std::prev(after);
    return last.before + std::min(last.bytes, end - last.offset);
}

}  // namespace

bool well_formed(const Problem& problem) {
    if (problem.page_bytes == 0 || !(problem.link_bytes_per_ns > 0) || std::isinf(problem.link_bytes_per_ns))
        return false;
    if (problem.trace.size() >= most_pages || problem.units.size() >= most_pages) return false;
    std::vector<bool> seen(problem.units.size());
    uint64_t pages = 0;
    for (const Use& use : problem.trace) {
        if (use.unit >= problem.units.size()) return false;
        if (seen[use.unit]) continue;
        seen[use.unit] = true;
        uint64_t own = pages_of(problem.units[use.unit].bytes, problem.page_bytes);
        if (own >= most_pages || (pages += own) >= most_pages) return false;
        if (const double slowdown = problem.units[use.unit].slowdown; !(slowdown >= 1) || std::isinf(slowdown))
            return false;
    }
    return true;
}

Shape::Shape(const Problem& p)
    : problem(&p), held(std::max<uint32_t>(1, p.max_held)), pages(p.units.size()), unit_compute_ns(p.units.size()) {
    std::vector<bool> seen(p.units.size());
    for (const Use& use : p.trace) {
        compute_ns += static_cast<double>(use.compute_ns);
        unit_compute_ns[use.unit] += static_cast<double>(use.compute_ns);
        const Unit& unit = p.units[use.unit];
        if (seen[use.unit]) {
            if (unit.bytes) each_once = false;
            continue;
        }
        seen[use.unit] = true;
        if (!unit.bytes) continue;
        order.push_back(use.unit);
        pages[use.unit] = static_cast<uint32_t>(pages_of(unit.bytes, p.page_bytes));
        total_pages += pages[use.unit];
        total_bytes += unit.bytes;
        total_link_time += unit.link_time();
        has_whole = has_whole || unit.whole;
        changes = changes || (unit.changes && p.back_bytes_per_ns > 0);
        even = even && unit.gaps.empty() && unit.slowdown == 1;
    }
    // Holding more uses than a step has means holding every unit.
    held = static_cast<uint32_t>(std::min<uint64_t>(held, std::max<uint64_t>(1, p.trace.size())));
}

uint64_t Shape::link_bytes_of_pages(uint32_t unit, uint32_t first, uint32_t count) const {
    const Unit& of = problem->units[unit];
    uint64_t begin = uint64_t{first} * problem->page_bytes;
    uint64_t bytes = std::min(uint64_t{count} * problem->page_bytes, of.bytes - begin);
    if (of.gaps.empty()) return bytes;
    return bytes - (gap_bytes_before(of.gaps, begin + bytes) - gap_bytes_before(of.gaps, begin));
}

WindowNeed widest_window(const Shape& shape, std::span<const uint32_t> pages) {
    WindowNeed widest;
    const std::span<const Use> trace = shape.problem->trace;
    const uint32_t uses = shape.uses();
    if (uses == 0) return widest;
    // Slides a window that ends at use j over the cycle, and counts each unit once.
    std::vector<uint32_t> count(pages.size());
    uint64_t sum = 0;
    auto enter = [&](uint32_t unit) {
        if (count[unit]++ == 0) sum += pages[unit];
    };
    auto leave = [&](uint32_t unit) {
        if (--count[unit] == 0) sum -= pages[unit];
    };
    for (uint32_t k = 1; k < shape.held; k++) enter(trace[(uses - k) % uses].unit);
    uint32_t widest_end = 0;
    bool found = false;
    for (uint32_t j = 0; j < uses; j++) {
        enter(trace[j].unit);
        if (!found || sum > widest.pages) {
            widest.pages = sum;
            widest_end = j;
            found = true;
        }
        leave(trace[(j + uses - (shape.held - 1)) % uses].unit);
    }
    widest.unit = trace[widest_end].unit;
    for (uint32_t k = 1; k < shape.held; k++) {
        uint32_t unit = trace[(widest_end + uses - k) % uses].unit;
        if (pages[unit] > pages[widest.unit]) widest.unit = unit;
    }
    return widest;
}

bool covers_the_units(const Shape& shape, const Plan& plan) {
    if (plan.units.size() != shape.pages.size()) return false;
    for (size_t u = 0; u < plan.units.size(); u++) {
        const UnitPlan& unit = plan.units[u];
        if (uint64_t{unit.resident_pages} + unit.streamed_pages != shape.pages[u]) return false;
        if (unit.streamed_pages > plan.ring_pages) return false;
        if (unit.streamed_pages && unit.ring_offset >= plan.ring_pages) return false;
        const uint64_t end = uint64_t{unit.ring_offset} + unit.streamed_pages;
        if (shape.problem->contiguous && unit.streamed_pages && end > plan.ring_pages) return false;
    }
    return true;
}

}  // namespace stagehand::policy
