#include "policy/step_curve.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "policy/bounds.h"
#include "policy/evaluator.h"
#include "policy/families.h"
#include "policy/layout.h"
#include "policy/shape.h"

namespace stagehand::policy {

namespace {

class CurveMaker {
public:
    explicit CurveMaker(const Problem& problem)
        : problem_(problem),
          shape_(problem_),
          evaluator_(shape_, 6),
          parts_(shape_),
          tight_(tightest_ring(shape_)) {}

    uint64_t smallest() const { return tight_.pages; }
    uint64_t all() const { return shape_.total_pages; }

    double step_ns(uint64_t pages) {
        if (pages >= shape_.total_pages) return shape_.compute_ns;
        problem_.budget_pages = pages;
        double best = offer({shape_.pages, tight_.pages, tight_.layout});
        const uint32_t budget = static_cast<uint32_t>(pages);
        const uint32_t smallest = std::max(1u, parts_.smallest_ring(budget));
        for (double at = smallest * 1.3, before = infinity; at < budget * 1.5; at *= 1.5) {
            const uint32_t ring = std::min(budget, static_cast<uint32_t>(at + 0.5));
            double step = infinity;
            for (Family family : {Family::filled, Family::paced, Family::whole_units}) {
                if (family == Family::whole_units && !shape_.has_whole) continue;
                auto parts = parts_.make(family, shape_.total_pages - budget + ring, ring);
                if (!parts) continue;
                step = std::min(step, offer({*parts, ring, Layout::spread}));
                if (shape_.held > 1) step = std::min(step, offer({*parts, ring, Layout::rotating}));
            }
            best = std::min(best, step);
            if (step > before) break;
            before = step;
        }
        return best;
    }

private:
    static constexpr double infinity = std::numeric_limits<double>::infinity();

    double offer(const Candidate& candidate) {
        std::optional<Cost> cost = evaluator_.cost(candidate);
        return cost ? cost->step_ns : infinity;
    }

    Problem problem_;  // whose budget changes from point to point
    Shape shape_;
    Evaluator evaluator_;
    PartsMaker parts_;
    TightRing tight_;
};

}  // namespace

std::vector<CurvePoint> step_curve(const Problem& problem, uint64_t least_pages, uint64_t most_pages,
                                   size_t points) {
    if (!well_formed(problem) || points == 0) return {};
    CurveMaker maker(problem);
    const uint64_t first = std::max(least_pages, maker.smallest());
    const uint64_t last = std::min(most_pages, maker.all());
    if (first > last) return {};
    std::vector<CurvePoint> curve;
    for (size_t k = 0; k < points; k++) {
        const uint64_t pages = points == 1 ? last
                                           : first + static_cast<uint64_t>(static_cast<double>(last - first) *
                                                                           static_cast<double>(k) /
                                                                           static_cast<double>(points - 1));
        if (!curve.empty() && pages == curve.back().pages) continue;
        double step = maker.step_ns(pages);
        if (!curve.empty()) step = std::min(step, curve.back().step_ns);
        curve.push_back({pages, step});
    }
    return curve;
}

}  // namespace stagehand::policy
