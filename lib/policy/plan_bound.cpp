// The proof. The terms are those of bounds.cpp: M is the memory, here in pages, and y is what the link copies during
// one compute. Unit j has P pages, of which a plan keeps h from each use to the next, and copies bytes of the other
// p = P - h. R = M - (all h) is the number of pages that turn over: those of the ring that more than one unit uses.
//
// A step copies at least (all bytes) - (all h) pages, which is W - M + R. So the p add up to (all P) - M + R.
//
// During the use of unit j, memory holds its P pages, and the h pages of each other unit. So P + (all h) - h <= M,
// which is p <= R. The pages that are left, R - p, are all that can be copied for later uses until the use has ended.
// So the link stands still for at least (y + (p - R) pages)+ bytes. Computes do not overlap, so a step takes the copies
// and all these times together. These are the inequalities of the cycle (A. Belady 1966; S. Albers, S. Arora, S. Khanna
// 1999: see bounds.cpp) in whole numbers.
//
// For each R, the least over all p is a choice of that many pages one by one, because the time grows convexly with p:
// some pages of a unit cost nothing, the next one a part of a page, and each further one a page. The bound is the least
// over R. A unit that is kept whole or not at all only has fewer choices, and so do gaps (bounds.cpp).
#include "policy/plan_bound.h"

#include <algorithm>
#include <vector>

#include "policy/bounds.h"
#include "policy/shape.h"

namespace stagehand::policy {
namespace {

constexpr uint64_t kEffort = 1 << 21;  // steps of the search; beyond, the bound of any policy has to do

class PagedCycle {
public:
    explicit PagedCycle(const Shape& shape)
        : memory_(shape.problem->budget_pages),
          total_(shape.total_pages),
          page_(static_cast<double>(shape.problem->page_bytes)),
          beyond_(static_cast<double>(shape.total_bytes) - static_cast<double>(memory_) * page_) {
        for (uint32_t u : shape.order)
            units_.push_back({shape.pages[u], shape.unit_compute_ns[u] * shape.problem->link_bytes_per_ns});
        parts_.reserve(units_.size());
    }

    // In bytes of link time. 0 if that would take too long to find.
    double least() {
        double best = 0;
        uint64_t effort = 0;
        for (uint64_t turning = 1; turning <= memory_; turning++) {
            const double copied = beyond_ + static_cast<double>(turning) * page_;
            if (best > 0 && copied >= best) break;
            if ((effort += units_.size()) > kEffort) return 0;
            const double idle = least_idle(turning);
            if (idle >= 0 && (best == 0 || copied + idle < best)) best = copied + idle;
        }
        return best;
    }

private:
    struct Unit {
        uint64_t pages;
        double compute;
    };

    // For how long the link stands still at least, if so many pages turn over. Negative: no unit can have so many.
    double least_idle(uint64_t turning) {
        uint64_t wanted = total_ - std::min(total_, memory_) + turning, room = 0, free = 0;
        const double all = static_cast<double>(turning) * page_;
        double idle = 0;
        parts_.clear();
        for (const Unit& unit : units_) {
            const uint64_t most = std::min(unit.pages, turning);
            room += most;
            if (unit.compute > all) {
                idle += unit.compute - all;
                continue;
            }
            const double spare = (all - unit.compute) / page_;
            const uint64_t pages = std::min(most, static_cast<uint64_t>(spare));
            free += pages;
            if (pages < most) parts_.push_back(page_ * (1 - (spare - static_cast<double>(pages))));
        }
        if (room < wanted) return -1;
        if (wanted <= free) return idle;
        wanted -= free;
        const auto some = std::min<uint64_t>(wanted, parts_.size());
        std::nth_element(parts_.begin(), parts_.begin() + static_cast<std::ptrdiff_t>(some) - (some ? 1 : 0),
                         parts_.end());
        for (uint64_t i = 0; i < some; i++) idle += parts_[i];
        return idle + static_cast<double>(wanted - some) * page_;
    }

    const uint64_t memory_, total_;
    const double page_;
    const double beyond_;  // W - M in bytes; negative if only the ends of last pages do not fit
    std::vector<Unit> units_;
    std::vector<double> parts_;  // of a page, that the first page costs which is not free
};

}  // namespace

double least_plan_ns(const Problem& problem) {
    const double least = least_step_ns(problem);
    if (!well_formed(problem)) return least;
    std::vector<Unit> units;
    units.reserve(problem.units.size());
    for (const Unit& unit : problem.units) units.push_back({unit.link_bytes(), false});
    Problem dense = problem;
    dense.units = units;
    const Shape shape(dense);
    if (!shape.each_once || shape.total_pages <= problem.budget_pages) return least;
    return std::max(least, PagedCycle(shape).least() / problem.link_bytes_per_ns);
}

}  // namespace stagehand::policy
