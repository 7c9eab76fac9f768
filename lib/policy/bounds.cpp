// The proofs of the bounds. M is the memory in bytes, s is a unit's bytes, and y is what the link copies during one
// compute. h is the number of bytes of a unit that stay on the device from one use of the unit to its next use
// ("kept").
//
// Instants. At an instant between two uses, the bytes that are kept across it fit in M. Let k instants of a step pierce
// every span from a use to the next use of the same unit. Then all kept bytes add up to at most k M, so a step copies
// at least (sum of s over uses) - k M. That is W - M in a cycle (k = 1), and 2 (W - M) forward then backward (k = 2:
// the turn and the seam). Keeping the units that were used last reaches the latter.
//
// Instants, in time. Let an instant lie just before use p. Consider the time from the start of use p - 1 to the end of
// the last use that is held together with p. At that end, memory holds all units that are held then, the bytes of
// others that are kept across the instant, and every byte that was copied meanwhile for later uses (such a byte is not
// overwritten before). So the bytes z copied meanwhile and the bytes kept across the instant are at most M together. A
// byte that is copied there costs a kept byte, and a byte that is not copied leaves the link idle. Either way the step
// is at least as long as if the link had stood still during those computes.
//
// Cycle. When each unit is used once, everything that is kept spans every other unit's use: s_j + (kept bytes of the
// others) <= M. With d = M - (all kept bytes) this is s_j - h_j <= d. So (all kept bytes) >= sum of (s - d)+, and W - M
// + d bytes are copied. For equal units this is the miss rate of the optimal MIN on a loop (L. A. Belady, A study of
// replacement algorithms for a virtual-storage computer, IBM Systems Journal 5, 1966). The inequality over the bytes
// that are kept across a use is that of the linear program for units of unequal sizes (S. Albers, S. Arora, S. Khanna,
// Page replacement for general caching problems, SODA 1999).
//
// Cycle, in time. During use j at most d - (s_j - h_j) bytes are copied, by the same inequality at its end. With x = s
// - h the link idles for (y_j + x_j - d)+ bytes there, and the x add up to W - M + d. The least over d and x has a
// closed form for each d and is convex in d.
//
// Gaps. A byte in a gap is never copied. So a policy with these units does no better than a policy for which gaps take
// no memory, and the bounds above hold with the copied bytes alone as sizes. In addition, the bytes that are kept
// across an instant are no more than the densest bytes that fit in M. A part of a whole unit saves nothing, so a whole
// unit counts as equally dense everywhere. The larger of both bounds holds.
//
// Slow sources. Bytes that come slowly are read one after the other, while the link copies others. So the time for
// reading them is a bound of its own, by the same instants: the memory holds the bytes whose reading costs most.
#include "policy/bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "policy/layout.h"
#include "policy/shape.h"

namespace stagehand::policy {

namespace {

struct Instants {
    uint64_t count = 0;
    double idle_compute_ns = 0;  // of the computes, pairwise disjoint, during which copying gains nothing
};

class InstantFinder {
public:
    explicit InstantFinder(const Shape& shape) : shape_(shape), uses_(shape.uses()), next_(find_next_uses()) {}

    // The smallest set of instants that greedy piercing finds from any start inside the shortest span. Among equals,
    // the set whose computes are longest.
    Instants find() {
        if (shape_.order.empty()) return {};
        sum_computes();
        uint64_t shortest = 0;
        uint64_t length = std::numeric_limits<uint64_t>::max();
        for (uint64_t a = 0; a < uses_; a++) {
            if (next_[a] == none || next_[a] - a >= length) continue;
            length = next_[a] - a;
            shortest = a;
        }
        earliest_ = next_;
        for (uint64_t a = 2 * uint64_t{uses_} - 1; a-- > 0;) earliest_[a] = std::min(earliest_[a], earliest_[a + 1]);
        Instants best{std::numeric_limits<uint64_t>::max(), 0};
        for (uint64_t start = shortest + 1; start <= shortest + length; start++) {
            Instants found = from(start % uses_);
            if (found.count < best.count || (found.count == best.count && found.idle_compute_ns > best.idle_compute_ns))
                best = found;
        }
        return best;
    }

private:
    static constexpr uint64_t none = std::numeric_limits<uint64_t>::max();

    // For each use of two consecutive steps, the next use of its unit.
    std::vector<uint64_t> find_next_uses() const {
        std::vector<uint64_t> next(2 * size_t{uses_}, none);
        std::vector<uint64_t> later(shape_.pages.size(), none);
        for (uint64_t a = 3 * uint64_t{uses_}; a-- > 0;) {
            uint32_t unit = shape_.problem->trace[a % uses_].unit;
            if (shape_.pages[unit] == 0) continue;
            if (a < next.size()) next[a] = later[unit];
            later[unit] = a;
        }
        return next;
    }

    void sum_computes() {
        computes_.assign(1, 0);
        for (int step = 0; step < 3; step++)
            for (const Use& use : shape_.problem->trace)
                computes_.push_back(computes_.back() + static_cast<double>(use.compute_ns));
    }

    // An instant at p idles uses p - 1 to p + held - 1. Windows must not overlap, also across the end of the step.
    Instants from(uint64_t start) const {
        Instants found;
        const uint64_t width = uint64_t{shape_.held} + 1;
        uint64_t free_from = start;  // the first instant whose window does not overlap the window before
        for (uint64_t p = start; p < start + uses_;) {
            found.count++;
            if (p >= free_from && p + width <= start + uses_) {
                uint64_t first = p + uses_ - 1;
                found.idle_compute_ns += computes_[first % uses_ + width] - computes_[first % uses_];
                free_from = p + width;
            }
            uint64_t next = p < uses_ ? earliest_[p] : earliest_[p - uses_];
            if (next == none) break;
            p = p < uses_ ? next : next + uses_;
        }
        return found;
    }

    const Shape& shape_;
    uint32_t uses_;
    std::vector<uint64_t> next_;
    std::vector<uint64_t> earliest_;  // the earliest end of a span that starts at this use or later
    std::vector<double> computes_;    // running sum over three steps
};

double memory_bytes(const Shape& shape) {
    return static_cast<double>(shape.problem->budget_pages) * static_cast<double>(shape.problem->page_bytes);
}

// What a copy of the unit costs.
using CostOf = double (*)(const Unit&);
double bytes_of(const Unit& unit) { return static_cast<double>(unit.link_bytes()); }
double reading_of(const Unit& unit) { return unit.slowdown > 1 ? unit.link_time() : 0; }

// If nothing is kept.
double cost_of_all(const Shape& shape, CostOf cost) {
    double sum = 0;
    for (const Use& use : shape.problem->trace) sum += cost(shape.problem->units[use.unit]);
    return sum;
}

std::vector<Unit> without_gaps(std::span<const Unit> units) {
    std::vector<Unit> dense;
    dense.reserve(units.size());
    for (const Unit& unit : units) dense.push_back({unit.link_bytes(), unit.whole, {}, unit.slowdown});
    return dense;
}

Problem with_units(const Problem& problem, std::span<const Unit> units) {
    Problem other = problem;
    other.units = units;
    return other;
}

// A problem, together with the same problem without its gaps.
struct Shapes {
    explicit Shapes(const Problem& problem)
        : given(problem), units(without_gaps(problem.units)), relaxed(with_units(problem, units)), dense(relaxed) {}
    Shapes(const Shapes&) = delete;
    Shapes& operator=(const Shapes&) = delete;

    const Shape given;
    const std::vector<Unit> units;
    const Problem relaxed;
    const Shape dense;
};

// The most that the memory can save, if the copies of what it holds are saved.
double most_kept(const Shape& shape, CostOf cost) {
    double room = memory_bytes(shape);
    if (shape.even) return room;
    struct Kept {
        double bytes, cost;
    };
    std::vector<Kept> units;
    for (uint32_t u : shape.order) {
        const Unit& unit = shape.problem->units[u];
        const double copied = static_cast<double>(unit.link_bytes());
        if (copied > 0) units.push_back({unit.whole ? static_cast<double>(unit.bytes) : copied, cost(unit)});
    }
    std::sort(units.begin(), units.end(),
              [](const Kept& a, const Kept& b) { return a.cost * b.bytes > b.cost * a.bytes; });
    double kept = 0;
    for (const Kept& unit : units) {
        const double part = std::min(1.0, room / unit.bytes);
        kept += part * unit.cost;
        room -= part * unit.bytes;
    }
    return kept;
}

// The least that a step needs of the link, and of those that read slow sources, in bytes that the link copies
// meanwhile.
double link_time(const Shapes& shapes, uint64_t instants) {
    const double count = static_cast<double>(instants);
    double most = 0;
    for (const CostOf cost : {bytes_of, reading_of})
        most = std::max(most, cost_of_all(shapes.dense, cost) - count * most_kept(shapes.given, cost));
    return most;
}

bool fits(const Shape& shape) { return static_cast<double>(shape.total_bytes) <= memory_bytes(shape); }

std::vector<uint64_t> sizes_in_order(const Shape& shape) {
    std::vector<uint64_t> sizes;
    for (uint32_t u : shape.order) sizes.push_back(shape.problem->units[u].bytes);
    return sizes;
}

// The least of W - M + d + idle(d) over d, in bytes of link time, for a trace that uses each unit once.
double cycle_link_bytes(const Shape& shape) {
    const double link = shape.problem->link_bytes_per_ns;
    const double beyond = static_cast<double>(shape.total_bytes) - memory_bytes(shape);
    auto least = [&](double d) {
        double inherent = 0;  // computes longer than the copying of all memory that turns over
        double crowded = beyond + d;
        for (uint32_t u : shape.order) {
            double y = shape.unit_compute_ns[u] * link;
            double s = static_cast<double>(shape.problem->units[u].bytes);
            inherent += std::max(0.0, y - d);
            crowded += std::max(y - d, -s);
        }
        return beyond + d + std::max({0.0, inherent, crowded});
    };
    const std::vector<uint64_t> sizes = sizes_in_order(shape);
    double low = static_cast<double>(cycle_surplus(sizes, static_cast<uint64_t>(memory_bytes(shape))));
    double high = std::max(low, memory_bytes(shape));
    for (int round = 0; round < 80 && high - low > 1e-7 * high; round++) {
        double third = (high - low) / 3;
        if (least(low + third) <= least(high - third))
            high -= third;
        else
            low += third;
    }
    // The function is convex, and every value is at least the minimum. So subtract what the last bracket leaves open.
    return least(low + (high - low) / 2) - 2 * (high - low) * static_cast<double>(shape.order.size() + 1);
}

}  // namespace

uint64_t cycle_surplus(std::span<const uint64_t> sizes, uint64_t memory) {
    std::vector<uint64_t> sorted(sizes.begin(), sizes.end());
    std::sort(sorted.begin(), sorted.end());
    uint64_t sum = 0;
    for (uint64_t s : sorted) sum += s;
    // While d is at most the smallest of the k largest sizes, exactly these k sizes count: d + sum - k d <= memory.
    for (size_t k = sorted.size(); k > 1; k--) {
        uint64_t smallest = sorted[sorted.size() - k];
        uint64_t d = sum > memory ? (sum - memory + k - 2) / (k - 1) : 0;
        if (d <= smallest) return d;
        sum -= smallest;
    }
    return 0;
}

uint64_t least_bytes(const Problem& problem) {
    if (!well_formed(problem)) return 0;
    const Shapes shapes(problem);
    if (fits(shapes.given)) return 0;
    double least = cost_of_all(shapes.dense, bytes_of) -
                   static_cast<double>(InstantFinder(shapes.dense).find().count) * most_kept(shapes.given, bytes_of);
    if (shapes.dense.each_once && !fits(shapes.dense)) {
        const double memory = memory_bytes(shapes.dense);
        uint64_t surplus = cycle_surplus(sizes_in_order(shapes.dense), static_cast<uint64_t>(memory));
        least = std::max(least, static_cast<double>(shapes.dense.total_bytes + surplus) - memory);
    }
    return static_cast<uint64_t>(std::max(0.0, least));
}

double simple_step_ns(const Problem& problem) {
    if (!well_formed(problem)) return 0;
    const Shapes shapes(problem);
    if (fits(shapes.given)) return shapes.given.compute_ns;
    return std::max(shapes.given.compute_ns,
                    link_time(shapes, InstantFinder(shapes.dense).find().count) / problem.link_bytes_per_ns);
}

double least_step_ns(const Problem& problem) {
    if (!well_formed(problem)) return 0;
    const Shapes shapes(problem);
    if (fits(shapes.given)) return shapes.given.compute_ns;
    const Shape& shape = shapes.dense;
    const double link = problem.link_bytes_per_ns;
    Instants instants = InstantFinder(shape).find();
    const double count = static_cast<double>(instants.count);
    double least = std::max(shape.compute_ns, link_time(shapes, instants.count) / link);
    if (fits(shape)) return least;
    double copy_ns = (cost_of_all(shape, bytes_of) - count * memory_bytes(shape)) / link;
    least = std::max(least, copy_ns + instants.idle_compute_ns);
    if (shape.each_once) least = std::max(least, cycle_link_bytes(shape) / link);
    return least;
}

Infeasible smallest_budget(const Problem& problem) {
    if (!well_formed(problem)) return {std::numeric_limits<uint64_t>::max(), 0};
    Shape shape(problem);
    return {tightest_ring(shape).pages, widest_window(shape, shape.pages).unit};
}

}  // namespace stagehand::policy
