// The search for a plan: first the families over the ring's size, then local moves, then fewer bytes in the same time.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "policy/bounds.h"
#include "policy/evaluator.h"
#include "policy/families.h"
#include "policy/frontier.h"
#include "policy/layout.h"
#include "policy/local_moves.h"
#include "policy/plan.h"
#include "policy/shape.h"

namespace stagehand::policy {

namespace {

// A plan is good enough, and further search not worth it, if its step is so close to the lower bound.
constexpr double good_enough = 1.0005;
// Up to so many choices of parts are all tried. That takes some tens of milliseconds.
constexpr uint64_t most_enumerated = 4096;
// So many of the best families are refined. The others are far behind, as a rule.
constexpr size_t most_refined = 3;
// The rest of the effort is left to local moves, which find more by it than a finer grid does.
constexpr uint64_t part_for_moves = 3;
// The smallest ring that is fast enough is found to this part of it.
constexpr uint32_t ring_precision = 200;

// How the rings of a family are tried. Each is larger than the one before by the ratio, and the sweep ends after some
// rings that are no better: the time has several minima over the ring, because copies wrap around its end.
struct Grid {
    double first;  // of the smallest ring, which leaves no copy room to overlap with a use
    double ratio;
    uint32_t patience;
};
constexpr Grid coarse{1.3, 1.8, 1};
constexpr Grid fine{1.0, 1.08, 10};
constexpr double most_rings = 28;  // of a fine grid, unless its ratio is the finest

// The effort that a search may spend. An evaluation takes time for each use of each step that it simulates, so there
// are as many as take a quarter of a second at most, and enough to try the main families.
struct Effort {
    explicit Effort(uint64_t of) {
        const uint64_t uses = std::max<uint64_t>(1, of);
        evaluations = std::clamp<uint64_t>(1'000'000 / uses, 18, 8'000);
        few = evaluations < 200;
        steps = few ? 6 : 16;
        final_steps = static_cast<uint32_t>(std::clamp<uint64_t>(2'000'000 / uses, 8, 512));
    }
    uint64_t evaluations;
    bool few;
    uint32_t steps;        // simulated for each evaluation
    uint32_t final_steps;  // for the plan that is returned
};

class Search {
public:
    Search(const Shape& shape, Evaluator& evaluator, const Effort& effort)
        : shape_(shape),
          effort_(effort),
          evaluator_(evaluator),
          parts_(shape),
          budget_(static_cast<uint32_t>(std::min<uint64_t>(shape.problem->budget_pages, shape.total_pages))),
          good_enough_ns_(least_step_ns(*shape.problem) * good_enough) {}

    // `first` is a candidate that runs.
    Candidate run(const Candidate& first) {
        offer(first);
        enumerate();
        sweep_families();
        LocalMoves moves(shape_, evaluator_, frontier_);
        if (!is_good_enough()) moves.shorten(left() / 2);
        shrink_rings();
        moves.slim(left());
        return frontier_.leanest().candidate;
    }

private:
    struct Tried {
        Family family;
        uint32_t ring;
        double step_ns;
    };

    std::optional<Cost> offer(const Candidate& candidate) {
        std::optional<Cost> cost = evaluator_.cost(candidate);
        if (cost) frontier_.offer(candidate, *cost);
        return cost;
    }

    uint64_t left() const { return effort_.evaluations - std::min(effort_.evaluations, evaluator_.evaluations()); }
    const Grid& grid() const { return effort_.few ? coarse : fine; }
    bool is_good_enough() const { return frontier_.fastest().cost.step_ns <= good_enough_ns_; }

    // A problem of a few pages is small enough to try all parts. The ring gets all of the remaining budget.
    void enumerate() {
        uint64_t combinations = 1;
        for (uint32_t u : shape_.order) {
            combinations *= shape_.problem->units[u].whole ? 2 : shape_.pages[u] + 1;
            if (combinations > most_enumerated) return;
        }
        std::vector<uint32_t> parts(shape_.pages.size());
        uint64_t streamed = 0;
        for (uint64_t k = 1; k < combinations; k++) {
            // Counts up, with one digit for each unit.
            for (uint32_t u : shape_.order) {
                uint32_t step = shape_.problem->units[u].whole ? shape_.pages[u] : 1;
                if (parts[u] < shape_.pages[u]) {
                    parts[u] += step;
                    streamed += step;
                    break;
                }
                streamed -= parts[u];
                parts[u] = 0;
            }
            uint64_t resident = shape_.total_pages - streamed;
            if (resident < budget_)
                offer_layouts({parts, static_cast<uint32_t>(std::min(budget_ - resident, streamed)), {}});
        }
        effort_.evaluations += evaluator_.evaluations();
    }

    double offer_layouts(Candidate candidate) {
        double best = infinity;
        auto attempt = [&](Layout layout) {
            candidate.layout = layout;
            if (std::optional<Cost> cost = offer(candidate)) best = std::min(best, cost->step_ns);
        };
        uint64_t streamed = 0;
        for (uint32_t u : shape_.order) streamed += candidate.parts[u];
        const bool pieces = shape_.problem->contiguous;
        const bool seam = shape_.each_once && streamed % candidate.ring != 0;
        if (seam || pieces) attempt(Layout::spread);
        if (!seam || pieces || !effort_.few) attempt(Layout::packed);
        if (shape_.held > 1 && (best == infinity || !effort_.few)) attempt(Layout::rotating);
        if (shape_.held > 1 && (best == infinity || !effort_.few)) attempt(Layout::two_ended);
        return best;
    }

    double offer_family(Family family, uint32_t ring) {
        if (ring < smallest_ring_ || ring > budget_ || left() == 0) return infinity;
        uint64_t needed = shape_.total_pages - budget_ + ring;
        auto parts = parts_.make(family, needed, ring);
        if (!parts) return infinity;
        uint64_t streamed = 0;
        for (uint32_t u : shape_.order) streamed += (*parts)[u];
        double best = offer_layouts({*parts, ring, Layout::packed});
        // Units that must be whole leave pages over, which the ring can use.
        if (streamed > needed)
            best = std::min(best, offer_layouts({*parts, static_cast<uint32_t>(ring + streamed - needed), {}}));
        return best;
    }

    void sweep_families() {
        smallest_ring_ = parts_.smallest_ring(budget_);
        for (Family family : all_families) {
            bool main = family == Family::level || family == Family::filled || family == Family::paced ||
                        (family == Family::whole_units && shape_.has_whole);
            bool rare = family == Family::rare_level || family == Family::rare_paced;
            if (rare ? !parts_.uneven_costs() : effort_.few && !main) continue;
            Tried tried = sweep(family);
            if (tried.step_ns < infinity) tried_.push_back(tried);
        }
        std::sort(tried_.begin(), tried_.end(), [](const Tried& a, const Tried& b) { return a.step_ns < b.step_ns; });
        for (size_t k = 0; k < std::min(tried_.size(), most_refined) && !is_good_enough(); k++) refine(tried_[k]);
    }

    // The rings to try, by growing size: a grid. If few units stream, the rings that their parts fill a whole number of
    // times, because a part that wraps around the ring's end or meets two others takes another copy.
    std::vector<uint32_t> rings_for(Family family) const {
        std::vector<uint32_t> rings;
        const double finest = std::pow(static_cast<double>(budget_) / smallest_ring_, 1 / most_rings);
        const double ratio = effort_.few ? coarse.ratio : std::max(fine.ratio, finest);
        if (family == Family::half_few) {
            const uint64_t missing = shape_.total_pages - budget_;
            for (auto rounds = missing / smallest_ring_; rounds;
                 rounds = static_cast<uint64_t>(static_cast<double>(rounds) / ratio))
                rings.push_back(static_cast<uint32_t>(std::min<uint64_t>(budget_, (missing + rounds - 1) / rounds)));
            return rings;
        }
        for (double at = smallest_ring_ * grid().first; at < budget_ * ratio; at *= ratio)
            rings.push_back(std::min(budget_, static_cast<uint32_t>(at + 0.5)));
        return rings;
    }

    // Finds the best ring of a family. Stops at the first ring that is good enough.
    Tried sweep(Family family) {
        Tried best{family, 0, infinity};
        uint32_t worse = 0;
        for (const uint32_t ring : rings_for(family)) {
            const double step = offer_family(family, ring);
            worse = step < best.step_ns || best.ring == 0 ? 0 : worse + 1;
            if (step < best.step_ns) best = {family, ring, step};
            if (best.step_ns <= good_enough_ns_ || worse >= grid().patience) break;
        }
        return best;
    }

    void refine(Tried& from) {
        for (uint32_t step = std::max(1u, from.ring / 8); step > 0 && left() > effort_.evaluations / part_for_moves;
             step /= 2) {
            uint32_t center = from.ring;
            for (uint32_t ring : {center - std::min(center, step), center + step}) {
                double time = offer_family(from.family, ring);
                if (time < from.step_ns) from = {from.family, ring, time};
            }
        }
    }

    // Fewer bytes: finds the smallest ring of each family that is almost as fast as the fastest plan.
    void shrink_rings() {
        for (Tried& tried : tried_) {
            if (tried.step_ns > frontier_.limit_ns()) continue;
            uint32_t fails = smallest_ring_ - 1, works = tried.ring;
            while (works - fails > std::max(1u, works / ring_precision) && left()) {
                uint32_t middle = fails + (works - fails) / 2;
                (offer_family(tried.family, middle) <= frontier_.limit_ns() ? works : fails) = middle;
            }
            // The time changes unevenly with the ring because of the seam, so a slightly smaller ring may fit again.
            for (uint32_t below = 2; below <= 4 && below < works && !effort_.few; below++)
                offer_family(tried.family, works - below);
        }
    }

    static constexpr double infinity = std::numeric_limits<double>::infinity();

    const Shape& shape_;
    Effort effort_;
    Evaluator& evaluator_;
    PartsMaker parts_;
    uint32_t budget_;
    uint32_t smallest_ring_ = 1;
    double good_enough_ns_;
    Frontier frontier_;
    std::vector<Tried> tried_;
};

Plan all_resident(const Shape& shape) {
    Plan plan;
    plan.units.resize(shape.pages.size());
    for (uint32_t u : shape.order) plan.units[u].resident_pages = shape.pages[u];
    plan.resident_pages = shape.total_pages;
    plan.step_ns = shape.compute_ns;
    return plan;
}

}  // namespace

std::variant<Plan, Infeasible> make_plan(const Problem& problem) {
    if (!well_formed(problem)) return Infeasible{std::numeric_limits<uint64_t>::max(), 0};
    const Shape shape(problem);
    if (shape.total_pages <= problem.budget_pages) return all_resident(shape);
    const TightRing tight = tightest_ring(shape);
    if (tight.pages > problem.budget_pages) return Infeasible{tight.pages, widest_window(shape, shape.pages).unit};
    const Effort effort(shape.uses());
    Evaluator evaluator(shape, effort.steps);
    // The plan for the smallest budget runs at every larger one too.
    const Candidate found = Search(shape, evaluator, effort).run({shape.pages, tight.pages, tight.layout});
    return *evaluator.plan(found, effort.final_steps);
}

}  // namespace stagehand::policy
