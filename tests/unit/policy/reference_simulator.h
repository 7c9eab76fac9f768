// Simulates a plan page by page and event by event. The simulation is slow and obvious, and does not use the
// recurrence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "policy/plan.h"

namespace stagehand::policy::test {

struct ReferenceUse {
    uint64_t bytes = 0;
    uint32_t copies = 0;
    double load_start = 0, load_end = 0, compute_start = 0, compute_end = 0;
};

class ReferenceSimulator {
public:
    ReferenceSimulator(const Problem& problem, const Plan& plan) : problem_(problem), plan_(plan) {}

    // Returns all uses of the first `steps` steps. Returns nothing if a copy would wait for a use that is held at the
    // same time.
    std::optional<std::vector<ReferenceUse>> run(uint32_t steps) {
        if (!list_copies(steps)) return std::nullopt;
        uses_.assign(steps * problem_.trace.size(), {});
        play();
        return uses_;
    }

private:
    struct Page {
        bool taken = false;
        uint32_t unit = 0;
    };
    struct ListedCopy {
        uint64_t use, bytes;
        double slowdown;
        int64_t after;  // the use whose compute must have ended; -1: none
    };
    struct Piece {
        std::vector<uint32_t> pages;
        int64_t after;
    };

    bool list_copies(uint32_t steps) {
        std::vector<Page> ring(plan_.ring_pages);
        std::vector<int64_t> last(problem_.units.size(), -1);
        const uint64_t length = problem_.trace.size();
        const int64_t held = std::max<uint32_t>(1, std::min<uint64_t>(problem_.max_held, length));
        for (uint64_t use = 0; use < steps * length; use++) {
            const uint32_t unit = problem_.trace[use % length].unit;
            const UnitPlan& where = plan_.units[unit];
            std::vector<uint32_t> missing, all;
            for (uint32_t k = 0; k < where.streamed_pages; k++) {
                const Page& page = ring[(where.ring_offset + k) % plan_.ring_pages];
                all.push_back(k);
                if (!page.taken || page.unit != unit) missing.push_back(k);
            }
            if (!missing.empty() && problem_.units[unit].whole) missing = all;
            std::vector<Piece> pieces;
            for (uint32_t k : missing) {
                const Page& page = ring[(where.ring_offset + k) % plan_.ring_pages];
                int64_t after = page.taken ? last[page.unit] + held - 1 : -1;
                if (after >= static_cast<int64_t>(use)) return false;
                if (!pieces.empty() && pieces.back().after == after && pieces.back().pages.back() + 1 == k)
                    pieces.back().pages.push_back(k);
                else
                    pieces.push_back({{k}, after});
            }
            merge(pieces);
            std::stable_sort(pieces.begin(), pieces.end(), [](auto& a, auto& b) { return a.after < b.after; });
            for (const Piece& piece : pieces) {
                uint64_t bytes = 0;
                for (uint32_t k : piece.pages) {
                    bytes += copied_of_page(problem_.units[unit], where.resident_pages + k);
                    ring[(where.ring_offset + k) % plan_.ring_pages] = {true, unit};
                }
                copies_.push_back({use, bytes, problem_.units[unit].slowdown, piece.after});
            }
            last[unit] = static_cast<int64_t>(use);
        }
        return true;
    }

    uint64_t copied_of_page(const Unit& unit, uint32_t page) const {
        const uint64_t begin = page * problem_.page_bytes;
        const uint64_t end = std::min(begin + problem_.page_bytes, unit.bytes);
        uint64_t bytes = end - begin;
        for (const Gap& gap : unit.gaps) {
            const uint64_t from = std::max(begin, gap.offset), to = std::min(end, gap.offset + gap.bytes);
            if (from < to) bytes -= to - from;
        }
        return bytes;
    }

    // While there are more than four: joins the neighbours that hold up the fewest pages.
    static void merge(std::vector<Piece>& pieces) {
        while (pieces.size() > 4) {
            size_t best = pieces.size(), least = SIZE_MAX;
            for (size_t k = 0; k + 1 < pieces.size(); k++) {
                if (pieces[k].pages.back() + 1 != pieces[k + 1].pages.front()) continue;
                const Piece& earlier = pieces[k].after < pieces[k + 1].after ? pieces[k] : pieces[k + 1];
                if (earlier.pages.size() < least) {
                    least = earlier.pages.size();
                    best = k;
                }
            }
            if (best == pieces.size()) return;
            Piece& into = pieces[best];
            Piece& from = pieces[best + 1];
            into.pages.insert(into.pages.end(), from.pages.begin(), from.pages.end());
            into.after = std::max(into.after, from.after);
            pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(best) + 1);
        }
    }

    // The time that the write-back takes which begins when this use has ended. A unit is released when the uses have
    // ended that are held along with its own.
    double back_ns(size_t use) const {
        const size_t length = problem_.trace.size();
        const size_t held = std::max<size_t>(1, std::min<size_t>(problem_.max_held, length));
        const size_t released = (use + length - (held - 1)) % length;
        const uint32_t number = problem_.trace[released].unit;
        for (size_t later = released + 1; later < length; later++)
            if (problem_.trace[later].unit == number) return 0;  // written back after its last use
        const UnitPlan& where = plan_.units[number];
        if (!problem_.units[number].changes || problem_.back_bytes_per_ns <= 0 || !where.streamed_pages) return 0;
        uint64_t bytes = 0;
        for (uint32_t k = 0; k < where.streamed_pages; k++)
            bytes += copied_of_page(problem_.units[number], where.resident_pages + k);
        return static_cast<double>(problem_.copy_latency_ns) + static_cast<double>(bytes) / problem_.back_bytes_per_ns;
    }

    // Runs three engines and a clock: everything that can start starts, and then the time moves to the next end.
    void play() {
        const uint64_t length = problem_.trace.size();
        size_t backs_done = 0;  // uses after which nothing is left to write back
        bool returning = false;
        double back_end = 0;
        size_t next_copy = 0, next_compute = 0, copies_done = 0, computes_done = 0;
        bool copying = false, computing = false;
        double now = 0, copy_end = 0, compute_end = 0;
        std::vector<size_t> needed(uses_.size());  // copies that must be done before a use
        for (size_t k = 0; k < copies_.size(); k++) {
            needed[copies_[k].use] = k + 1;
            uses_[copies_[k].use].copies++;
            uses_[copies_[k].use].bytes += copies_[k].bytes;
        }
        while (next_compute < uses_.size() || computing) {
            while (!returning && backs_done < computes_done) {
                const double takes = back_ns(backs_done);
                if (takes > 0) {
                    returning = true;
                    back_end = now + takes;
                } else {
                    backs_done++;
                }
            }
            if (!copying && next_copy < copies_.size() &&
                static_cast<int64_t>(computes_done) > copies_[next_copy].after &&
                static_cast<int64_t>(backs_done) > copies_[next_copy].after) {
                const ListedCopy& copy = copies_[next_copy];
                copying = true;
                copy_end = now;
                if (copy.bytes)
                    copy_end += static_cast<double>(problem_.copy_latency_ns) +
                                static_cast<double>(copy.bytes) * copy.slowdown / problem_.link_bytes_per_ns;
                if (next_copy == 0 || copies_[next_copy - 1].use != copy.use) uses_[copy.use].load_start = now;
                uses_[copy.use].load_end = copy_end;
                next_copy++;
            }
            if (!computing && next_compute < uses_.size() && copies_done >= needed[next_compute]) {
                computing = true;
                ReferenceUse& use = uses_[next_compute];
                use.compute_start = now;
                compute_end = now + static_cast<double>(problem_.trace[next_compute % length].compute_ns);
                use.compute_end = compute_end;
                if (use.copies == 0) use.load_start = use.load_end = now;
                next_compute++;
            }
            if (returning && (!copying || back_end <= copy_end) && (!computing || back_end <= compute_end)) {
                now = back_end;
                returning = false;
                backs_done++;
            } else if (copying && (!computing || copy_end <= compute_end)) {
                now = copy_end;
                copying = false;
                copies_done++;
            } else if (computing) {
                now = compute_end;
                computing = false;
                computes_done++;
            } else {
                return;  // stuck: the caller sees uses without times
            }
        }
    }

    Problem problem_;
    const Plan& plan_;
    std::vector<ListedCopy> copies_;
    std::vector<ReferenceUse> uses_;
};

}  // namespace stagehand::policy::test
