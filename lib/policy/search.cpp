#include "policy/search.h"

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

// The effort that a search may spend, by the number of uses in an evaluated step or cycle.
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
    Search(const Shape& shape, Evaluator& evaluator, const Effort& effort, double least_ns)
        : shape_(shape),
          effort_(effort),
          evaluator_(evaluator),
          budget_(static_cast<uint32_t>(std::min<uint64_t>(shape.problem->budget_pages, shape.total_pages))),
          good_enough_ns_(least_ns * 1.0005) {
        guide(shape);
    }

    // Another shape of the same units, by which the families divide them.
    void guide(const Shape& shape) { parts_.emplace_back(shape); }
    std::optional<Cost> offer(const Candidate& candidate) {
        std::optional<Cost> cost = evaluator_.cost(candidate);
        if (cost) frontier_.offer(candidate, *cost);
        return cost;
    }

    // One candidate that runs has to have been offered.
    Candidate run() {
        enumerate();
        sweep_families();
        LocalMoves moves(shape_, evaluator_, frontier_);
        if (!good_enough()) moves.shorten(left() / 2);
        shrink_rings();
        moves.slim(left());
        return frontier_.leanest().candidate;
    }

private:
    struct Tried {
        PartsMaker* parts;
        Family family;
        uint32_t ring;
        double step_ns;
    };

    uint64_t left() const { return effort_.evaluations - std::min(effort_.evaluations, evaluator_.evaluations()); }
    bool good_enough() const { return frontier_.fastest().cost.step_ns <= good_enough_ns_; }

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

    double offer_family(PartsMaker& maker, Family family, uint32_t ring) {
        if (ring < smallest_ring_ || ring > budget_ || left() == 0) return infinity;
        uint64_t needed = shape_.total_pages - budget_ + ring;
        auto parts = maker.make(family, needed, ring);
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
        smallest_ring_ = parts_.front().smallest_ring(budget_);
        for (PartsMaker& parts : parts_)
            for (Family family : all_families) {
                bool main = family == Family::level || family == Family::filled || family == Family::paced ||
                            (family == Family::whole_units && shape_.has_whole);
                bool rare = family == Family::rare_level || family == Family::rare_paced;
                if (rare ? !parts.uneven_costs() : effort_.few && !main) continue;
                Tried tried = sweep(parts, family);
                if (tried.step_ns < infinity) tried_.push_back(tried);
            }
        std::sort(tried_.begin(), tried_.end(), [](const Tried& a, const Tried& b) { return a.step_ns < b.step_ns; });
        for (size_t k = 0; k < std::min<size_t>(tried_.size(), 3) && !good_enough(); k++) refine(tried_[k]);
    }

    // The rings to try, by growing size: a grid. If few units stream, the rings that their parts fill a whole number of
    // times, because a part that wraps around the ring's end or meets two others takes another copy.
    std::vector<uint32_t> rings_for(Family family) const {
        std::vector<uint32_t> rings;
        const double ratio =
            effort_.few ? 1.8 : std::max(1.08, std::pow(static_cast<double>(budget_) / smallest_ring_, 1.0 / 28));
        if (family == Family::half_few) {
            const uint64_t missing = shape_.total_pages - budget_;
            for (auto rounds = missing / smallest_ring_; rounds;
                 rounds = static_cast<uint64_t>(static_cast<double>(rounds) / ratio))
                rings.push_back(static_cast<uint32_t>(std::min<uint64_t>(budget_, (missing + rounds - 1) / rounds)));
            return rings;
        }
        for (double at = smallest_ring_ * (effort_.few ? 1.3 : 1.0); at < budget_ * ratio; at *= ratio)
            rings.push_back(std::min(budget_, static_cast<uint32_t>(at + 0.5)));
        return rings;
    }

    // Finds the best ring of a family. Stops at the first ring that is good enough.
    Tried sweep(PartsMaker& parts, Family family) {
        Tried best{&parts, family, 0, infinity};
        uint32_t worse = 0;
        for (const uint32_t ring : rings_for(family)) {
            const double step = offer_family(parts, family, ring);
            worse = step < best.step_ns || best.ring == 0 ? 0 : worse + 1;
            if (step < best.step_ns) best = {&parts, family, ring, step};
            if (best.step_ns <= good_enough_ns_ || worse >= (effort_.few ? 1u : 10u)) break;
        }
        return best;
    }

    void refine(Tried& from) {
        for (uint32_t step = std::max(1u, from.ring / 8); step > 0 && left() > effort_.evaluations / 3; step /= 2) {
            uint32_t center = from.ring;
            for (uint32_t ring : {center - std::min(center, step), center + step}) {
                double time = offer_family(*from.parts, from.family, ring);
                if (time < from.step_ns) from = {from.parts, from.family, ring, time};
            }
        }
    }

    // Fewer bytes: finds the smallest ring of each family that is almost as fast as the fastest plan.
    void shrink_rings() {
        for (Tried& tried : tried_) {
            if (tried.step_ns > frontier_.limit_ns()) continue;
            uint32_t fails = smallest_ring_ - 1, works = tried.ring;
            while (works - fails > std::max(1u, works / 200) && left()) {
                uint32_t middle = fails + (works - fails) / 2;
                (offer_family(*tried.parts, tried.family, middle) <= frontier_.limit_ns() ? works : fails) = middle;
            }
            // The time changes unevenly with the ring because of the seam, so a slightly smaller ring may fit again.
            for (uint32_t below = 2; below <= 4 && below < works && !effort_.few; below++)
                offer_family(*tried.parts, tried.family, works - below);
        }
    }

    static constexpr uint64_t most_enumerated = 4096;
    static constexpr double infinity = std::numeric_limits<double>::infinity();

    const Shape& shape_;
    Effort effort_;
    Evaluator& evaluator_;
    std::vector<PartsMaker> parts_;  // one for each guide
    uint32_t budget_;
    uint32_t smallest_ring_ = 1;
    double good_enough_ns_;  // so close to the lower bound that further search is not worth it
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

std::variant<Searched, Infeasible> search_plan(const Shape& shape) {
    if (shape.total_pages <= shape.problem->budget_pages) return Searched{all_resident(shape), std::nullopt};
    const TightRing tight = tightest_ring(shape);
    if (tight.pages > shape.problem->budget_pages)
        return Infeasible{tight.pages, widest_window(shape, shape.pages).unit};
    const Effort effort(shape.uses());
    Evaluator evaluator(shape, effort.steps);
    Search search(shape, evaluator, effort, least_step_ns(*shape.problem));
    // The plan for the smallest budget runs at every larger one too.
    search.offer({shape.pages, tight.pages, tight.layout});
    Candidate found = search.run();
    return Searched{*evaluator.plan(found, effort.final_steps), std::move(found)};
}

std::optional<Plan> search_mix(const Shape& shape, const Mix& mix, std::span<const Shape> guides,
                               std::span<const Candidate> seeds, double least_ns) {
    const Effort effort(MixClock(shape, mix).uses_per_cycle());
    Evaluator evaluator(shape, mix);
    Search search(shape, evaluator, effort, least_ns);
    bool any = false;
    for (const Candidate& seed : seeds) any = search.offer(seed).has_value() || any;
    if (!any) return std::nullopt;
    for (const Shape& guide : guides) search.guide(guide);
    return evaluator.plan(search.run(), 0);
}

std::variant<Plan, Infeasible> make_plan(const Problem& problem) {
    if (!well_formed(problem)) return Infeasible{std::numeric_limits<uint64_t>::max(), 0};
    auto found = search_plan(Shape(problem));
    if (const auto* infeasible = std::get_if<Infeasible>(&found)) return *infeasible;
    return std::move(std::get<Searched>(found).plan);
}

}  // namespace stagehand::policy
