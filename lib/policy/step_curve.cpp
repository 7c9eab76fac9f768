#include "policy/step_curve.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "policy/evaluator.h"
#include "policy/families.h"
#include "policy/layout.h"
#include "policy/shape.h"

namespace stagehand::policy {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// What memory could do at best: as if all of it held residents, and copies never waited for anything.
class Ideal {
public:
    explicit Ideal(const Shape& shape) : compute_ns_(shape.compute_ns) {
        std::vector<uint32_t> loads(shape.pages.size());
        const std::span<const Use> trace = shape.problem->trace;
        for (size_t j = 0; j < trace.size(); j++)
            if (trace.size() == 1 || trace[j].unit != trace[j ? j - 1 : trace.size() - 1].unit)
                loads[trace[j].unit]++;
        // Those that are loaded most often are kept first.
        std::vector<uint32_t> order = shape.order;
        std::stable_sort(order.begin(), order.end(),
                         [&](uint32_t a, uint32_t b) { return loads[a] > loads[b]; });
        for (size_t k = 0; k < order.size();) {
            Kind kind{loads[order[k]], 0, 0};
            double bytes = 0;
            for (; k < order.size() && loads[order[k]] == kind.loads; k++) {
                kind.pages += shape.pages[order[k]];
                bytes += static_cast<double>(shape.problem->units[order[k]].bytes);
            }
            kind.copy_ns = kind.loads * bytes / shape.problem->link_bytes_per_ns;
            kinds_.push_back(kind);
        }
    }

    double step_ns(uint64_t pages) const {
        double copy_ns = 0;
        for (const Kind& kind : kinds_) {
            const uint64_t kept = std::min(pages, kind.pages);
            pages -= kept;
            copy_ns += kind.copy_ns * (1 - static_cast<double>(kept) / static_cast<double>(kind.pages));
        }
        return std::max(compute_ns_, copy_ns);
    }

    // The least memory, at most `most`, with which the step is no longer than with `most`.
    uint64_t bend(uint64_t most) const {
        const double goal = step_ns(most);
        uint64_t low = 0, high = most;
        while (low < high) {
            const uint64_t middle = low + (high - low) / 2;
            if (step_ns(middle) <= goal)
                high = middle;
            else
                low = middle + 1;
        }
        return high;
    }

private:
    struct Kind {
        uint32_t loads;
        uint64_t pages;
        double copy_ns;  // with nothing resident
    };
    double compute_ns_;
    std::vector<Kind> kinds_;
};

// How many pages can be streamed in parts of at most so many pages.
class PartSums {
public:
    explicit PartSums(const Shape& shape) {
        for (const uint32_t u : shape.order)
            (shape.problem->units[u].whole ? whole_ : divisible_).add(shape.pages[u]);
        whole_.sum_up();
        divisible_.sum_up();
    }

    uint64_t most_within(uint32_t cap) const {
        const size_t k = divisible_.up_to(cap);
        return divisible_.sums[k] + (divisible_.sizes.size() - k) * uint64_t{cap} +
               whole_.sums[whole_.up_to(cap)];
    }

private:
    struct Sizes {
        std::vector<uint32_t> sizes;
        std::vector<uint64_t> sums;  // of the first k sizes

        void add(uint32_t pages) { sizes.push_back(pages); }
        void sum_up() {
            std::sort(sizes.begin(), sizes.end());
            sums.assign(1, 0);
            for (const uint32_t pages : sizes) sums.push_back(sums.back() + pages);
        }
        size_t up_to(uint32_t cap) const {
            return static_cast<size_t>(std::upper_bound(sizes.begin(), sizes.end(), cap) - sizes.begin());
        }
    };
    Sizes whole_, divisible_;
};

// The curve while it is made: refined where it falls most, by plans that are evaluated as long as that is
// cheap, and from there on by how far above the ideal those were.
class CurveMaker {
public:
    explicit CurveMaker(const Problem& problem)
        : problem_(problem),
          shape_(problem_),
          ideal_(shape_),
          sums_(shape_),
          evaluator_(shape_, 4),
          parts_(shape_),
          evaluations_(evaluations_for(shape_.uses())) {
        if (evaluations_) {
            tight_ = tightest_ring(shape_);
        } else {
            tight_.pages = static_cast<uint32_t>(widest_window(shape_, shape_.pages).pages);
        }
    }

    std::vector<CurvePoint> run(uint64_t least, uint64_t most, size_t points) {
        const uint64_t first = std::max<uint64_t>(least, tight_.pages);
        const uint64_t last = std::min(most, shape_.total_pages);
        if (first > last) return {};
        add(last);
        if (first < last && points > 1) add(first);
        const uint64_t bend = ideal_.bend(last);
        if (first < bend && bend < last && points > 3) add(bend);
        while (curve_.size() + 2 <= points) {
            size_t at = 0;
            double largest = 0;
            for (size_t k = 0; k + 1 < curve_.size(); k++) {
                const double area = (curve_[k].step_ns - curve_[k + 1].step_ns) *
                                    static_cast<double>(curve_[k + 1].pages - curve_[k].pages - 1);
                if (area > largest) {
                    largest = area;
                    at = k;
                }
            }
            if (largest == 0) break;
            add(curve_[at].pages + (curve_[at + 1].pages - curve_[at].pages) / 2);
        }
        return std::move(curve_);
    }

private:
    struct Best {
        double step_ns = infinity;
        uint64_t footprint = 0;
    };
    struct Excess {
        uint64_t pages;
        double ratio;  // of the best plan's step to the ideal one
    };

    // As many plans as take a few milliseconds. Where there are very many units each is small beside the
    // memory, and the ideal is close enough.
    static uint64_t evaluations_for(uint64_t uses) {
        return uses > 20'000 ? 0 : std::min<uint64_t>(10'000 / std::max<uint64_t>(1, uses) + 2, 500);
    }
    bool thorough() const { return evaluations_ >= 50; }
    bool may_evaluate() const { return evaluator_.evaluations() < evaluations_; }

    void add(uint64_t pages) {
        Best best{ideal_.step_ns(pages), pages};
        if (pages >= shape_.total_pages) {
            note_excess(pages, 1);
        } else if (may_evaluate()) {
            best = search(pages);
            note_excess(pages, best.step_ns / ideal_.step_ns(pages));
        } else {
            best.step_ns *= excess_at(pages);
        }
        insert({best.footprint, best.step_ns});
        if (best.footprint < pages) insert({pages, best.step_ns});
    }

    // Keeps the curve falling: what is known for less memory holds for more.
    void insert(CurvePoint point) {
        auto at =
            std::lower_bound(curve_.begin(), curve_.end(), point.pages,
                             [](const CurvePoint& known, uint64_t pages) { return known.pages < pages; });
        if (at != curve_.begin()) point.step_ns = std::min(point.step_ns, at[-1].step_ns);
        if (at != curve_.end() && at->pages == point.pages)
            at->step_ns = std::min(at->step_ns, point.step_ns);
        else
            at = curve_.insert(at, point);
        for (auto later = at + 1; later != curve_.end(); ++later)
            later->step_ns = std::min(later->step_ns, at->step_ns);
    }

    void note_excess(uint64_t pages, double ratio) {
        auto at = std::find_if(excess_.begin(), excess_.end(),
                               [&](const Excess& known) { return known.pages >= pages; });
        excess_.insert(at, {pages, ratio});
    }

    double excess_at(uint64_t pages) const {
        auto next = std::find_if(excess_.begin(), excess_.end(),
                                 [&](const Excess& known) { return known.pages >= pages; });
        if (next == excess_.end()) return excess_.empty() ? 1 : excess_.back().ratio;
        if (next == excess_.begin()) return next->ratio;
        const Excess& before = next[-1];
        return before.ratio + (next->ratio - before.ratio) * static_cast<double>(pages - before.pages) /
                                  static_cast<double>(next->pages - before.pages);
    }

    Best search(uint64_t pages) {
        problem_.budget_pages = pages;
        best_ = {};
        const double enough_ns = ideal_.step_ns(pages) * 1.005;
        offer({shape_.pages, tight_.pages, tight_.layout});
        const uint32_t budget = static_cast<uint32_t>(pages);
        const double ratio = thorough() ? 1.25 : 1.5;
        double before = infinity;
        for (double at = smallest_ring(budget); at < budget * ratio && may_evaluate(); at *= ratio) {
            const double step = offer_ring(std::min(budget, static_cast<uint32_t>(at + 0.5)));
            if (step > before || best_.step_ns <= enough_ns) break;
            before = step;
        }
        return best_;
    }

    // The smallest ring with which enough can be streamed to leave the rest resident.
    uint32_t smallest_ring(uint32_t budget) const {
        uint32_t fails = 0, works = budget;
        while (works - fails > 1) {
            const uint32_t ring = fails + (works - fails) / 2;
            const uint64_t streamed = sums_.most_within(ring / shape_.held);
            (streamed >= shape_.total_pages - budget + ring ? works : fails) = ring;
        }
        return works;
    }

    // The families that fit copies between computes want more ring than one compute fills; `level` does
    // without.
    double offer_ring(uint32_t ring) {
        double best = infinity;
        for (Family family : {Family::filled, Family::paced, Family::level}) {
            if (!thorough() && (family == Family::paced || best < infinity)) continue;
            auto parts = parts_.make(family, shape_.total_pages - problem_.budget_pages + ring, ring);
            if (parts) best = std::min(best, offer({*parts, ring, Layout::spread}));
        }
        return best;
    }

    double offer(const Candidate& candidate) {
        std::optional<Cost> cost = evaluator_.cost(candidate);
        if (!cost) return infinity;
        if (cost->step_ns < best_.step_ns) {
            best_ = {cost->step_ns, candidate.ring};
            for (const uint32_t u : shape_.order) best_.footprint += shape_.pages[u] - candidate.parts[u];
        }
        return cost->step_ns;
    }

    Problem problem_;  // whose budget changes from point to point
    Shape shape_;
    Ideal ideal_;
    PartSums sums_;
    Evaluator evaluator_;
    PartsMaker parts_;
    uint64_t evaluations_;
    TightRing tight_;
    Best best_;
    std::vector<CurvePoint> curve_;  // by pages
    std::vector<Excess> excess_;     // by pages
};

}  // namespace

std::vector<CurvePoint> step_curve(const Problem& problem, uint64_t least_pages, uint64_t most_pages,
                                   size_t points) {
    if (!well_formed(problem) || points == 0) return {};
    return CurveMaker(problem).run(least_pages, most_pages, points);
}

}  // namespace stagehand::policy
