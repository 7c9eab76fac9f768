#include "policy/step_curve.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "policy/evaluator.h"
#include "policy/families.h"
#include "policy/frontier.h"
#include "policy/layout.h"
#include "policy/local_moves.h"
#include "policy/shape.h"

namespace stagehand::policy {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
// A point with fewer evaluations is searched in a coarser way, and without local moves.
constexpr uint64_t few_evaluations = 50;
// Up to so many choices of whole units are all tried.
constexpr uint64_t most_choices = 64;
// A plan so close to the ideal is not improved.
constexpr double close_enough = 1.003;
// A point of the curve gets about so many evaluations, and at most so many points are evaluated.
constexpr uint64_t evaluations_per_point = 60, most_evaluated = 40;

// The best that memory could do: all of it holds resident pages, and copies never wait. The units with the most copies
// per page stay resident first. Units of equal cost stay resident in equal proportion.
class Ideal {
public:
    explicit Ideal(const Shape& shape) : compute_ns_(shape.compute_ns) {
        const std::span<const Use> trace = shape.problem->trace;
        std::vector<uint64_t> cost(shape.pages.size());
        std::vector<uint32_t> loads(shape.pages.size());
        for (size_t j = 0; j < trace.size(); j++) {
            cost[trace[j].unit] += shape.page_cost(trace[j].unit);
            // a unit that is used twice in a row is loaded once
            loads[trace[j].unit] += trace.size() == 1 || trace[j].unit != trace[j ? j - 1 : trace.size() - 1].unit;
        }
        std::vector<uint32_t> order = shape.order;
        std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return cost[a] > cost[b]; });
        for (size_t k = 0; k < order.size(); k++) {
            const uint32_t u = order[k];
            if (k == 0 || cost[u] != cost[order[k - 1]]) kinds_.push_back({});
            kinds_.back().pages += shape.pages[u];
            kinds_.back().copy_ns += loads[u] * shape.problem->units[u].link_time() / shape.problem->link_bytes_per_ns;
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
        uint64_t pages = 0;
        double copy_ns = 0;  // with nothing resident
    };
    double compute_ns_;
    std::vector<Kind> kinds_;
};

// A plan for one budget, found with few evaluations: families over the ring's size, then local moves.
class QuickSearch {
public:
    explicit QuickSearch(const Problem& problem, uint64_t evaluations)
        : problem_(problem),
          shape_(problem_),
          evaluator_(shape_, 4),
          parts_(shape_),
          tight_(tightest_ring(shape_)),
          evaluations_(evaluations) {}

    uint32_t smallest_budget() const { return tight_.pages; }
    uint64_t left() const { return evaluations_ - std::min(evaluations_, evaluator_.evaluations()); }

    struct Answer {
        double step_ns = 0;
        uint64_t footprint = 0;  // pages that the plan takes
    };
    // Finds a plan for a budget that runs. Ends after `allowance` evaluations, or once the step is as short as
    // `enough_ns`.
    Answer run(uint64_t pages, double enough_ns, uint64_t allowance) {
        problem_.budget_pages = pages;
        budget_ = static_cast<uint32_t>(pages);
        frontier_ = {};
        few_ = allowance < few_evaluations;
        stop_at_ = std::min(evaluations_, evaluator_.evaluations() + allowance);
        enough_ns_ = enough_ns;
        offer({shape_.pages, tight_.pages, tight_.layout});
        enumerate();
        if (!done()) sweep();
        if (!few_ && !done()) LocalMoves(shape_, evaluator_, frontier_).shorten(stop_at_ - evaluator_.evaluations());
        Candidate best = frontier_.fastest().candidate;
        if (!few_) shrink(best);
        Answer answer{frontier_.fastest().cost.step_ns, best.ring};
        for (const uint32_t u : shape_.order) answer.footprint += shape_.pages[u] - best.parts[u];
        return answer;
    }

private:
    bool done() const {
        return evaluator_.evaluations() >= stop_at_ ||
               (!frontier_.empty() && frontier_.fastest().cost.step_ns <= enough_ns_);
    }

    // Tries every choice, if all units are whole and there are few of them.
    void enumerate() {
        const size_t count = shape_.order.size();
        uint64_t choices = 1;
        for (const uint32_t u : shape_.order) {
            if (!shape_.problem->units[u].whole || (choices *= 2) > most_choices) return;
        }
        if (few_) return;
        for (uint64_t choice = 1; choice < choices; choice++) {
            Candidate candidate{std::vector<uint32_t>(shape_.pages.size()), 0, Layout::spread};
            uint64_t streamed = 0;
            for (size_t k = 0; k < count; k++) {
                const uint32_t u = shape_.order[k];
                if (choice >> k & 1) streamed += candidate.parts[u] = shape_.pages[u];
            }
            const uint64_t resident = shape_.total_pages - streamed;
            if (resident >= budget_) continue;
            candidate.ring = static_cast<uint32_t>(std::min<uint64_t>(budget_ - resident, streamed));
            offer_layouts(std::move(candidate));
        }
    }

    void sweep() {
        const double ratio = few_ ? 1.5 : 1.2;
        const int patience = few_ ? 1 : 4;
        double best = infinity;
        uint32_t best_ring = 0;
        auto attempt = [&](uint32_t ring) {
            const double step = offer_ring(ring);
            if (step >= best) return false;
            best = step;
            best_ring = ring;
            return true;
        };
        double at = parts_.smallest_ring(budget_) * (few_ ? 1.5 : 1.0);
        for (int worse = 0; at < budget_ * ratio && worse < patience && !done(); at *= ratio) {
            const bool better = attempt(std::min(budget_, static_cast<uint32_t>(at + 0.5)));
            worse = better || best == infinity ? 0 : worse + 1;
        }
        if (best == infinity || stop_at_ - evaluator_.evaluations() < 12) return;
        for (uint32_t step = std::max(1u, best_ring / 10); step > 0 && !done(); step /= 2) {
            const uint32_t middle = best_ring;
            if (middle > step) attempt(middle - step);
            if (middle + step <= budget_) attempt(middle + step);
        }
    }

    // The families that fit copies between computes want a larger ring than one compute fills. `level` works without
    // that.
    double offer_ring(uint32_t ring) {
        double best = infinity;
        for (Family family : {Family::rare_level, Family::filled, Family::paced, Family::level, Family::whole_units}) {
            if (few_ && (family == Family::paced || best < infinity)) continue;
            if (family == Family::whole_units && !shape_.has_whole) continue;
            if (family == Family::rare_level && !parts_.uneven_costs()) continue;
            if (auto parts = parts_.make(family, shape_.total_pages - budget_ + ring, ring))
                best = std::min(best, offer_layouts({std::move(*parts), ring, Layout::spread}));
        }
        return best;
    }

    // With few evaluations, takes the first layout that works, which is nearly always the first one.
    double offer_layouts(Candidate candidate) {
        double best = infinity;
        for (Layout layout : {Layout::spread, Layout::packed, Layout::rotating, Layout::two_ended}) {
            if (best < infinity && few_) break;
            if (layout == Layout::rotating && shape_.held == 1) break;
            candidate.layout = layout;
            best = std::min(best, offer(candidate));
        }
        return best;
    }

    double offer(const Candidate& candidate) {
        std::optional<Cost> cost = evaluator_.cost(candidate);
        if (!cost) return infinity;
        frontier_.offer(candidate, *cost);
        return cost->step_ns;
    }

    // Takes away the pages that the ring does not need, so that the curve shows where less memory is as good.
    void shrink(Candidate& candidate) {
        const double limit = frontier_.fastest().cost.step_ns * (1 + 1e-9);
        uint32_t works = candidate.ring, fails = 0;
        while (works - fails > 1) {
            candidate.ring = fails + (works - fails) / 2;
            const std::optional<Cost> cost = evaluator_.cost(candidate);
            (cost && cost->step_ns <= limit ? works : fails) = candidate.ring;
        }
        candidate.ring = works;
    }

    Problem problem_;  // its budget changes from run to run
    Shape shape_;
    Evaluator evaluator_;
    PartsMaker parts_;
    TightRing tight_;
    uint64_t evaluations_;
    uint64_t stop_at_ = 0;
    double enough_ns_ = 0;
    bool few_ = false;  // true if there are few evaluations
    uint32_t budget_ = 0;
    Frontier frontier_;
};

constexpr uint64_t least_allowance = 20;  // number of evaluations below which a search finds nothing good

// The number of plans that take a few milliseconds. If there are very many units, each is small compared with the
// memory, and the ideal is close enough.
uint64_t evaluations_for(uint64_t uses) {
    const uint64_t evaluated_uses = uses > 500 ? 20'000 : 40'000;
    const uint64_t evaluations = evaluated_uses / std::max<uint64_t>(1, uses);
    return evaluations < least_allowance ? 0 : std::min<uint64_t>(evaluations, 6'000);
}

// Makes the curve. It is refined where it falls most. Points come from evaluated plans as long as that is cheap. Later
// points come from the ideal, scaled by how far the evaluated plans were above it.
class CurveMaker {
public:
    explicit CurveMaker(const Problem& problem) : shape_(problem), ideal_(shape_) {
        evaluations_ = evaluations_for(shape_.uses());
        if (evaluations_) search_.emplace(problem, evaluations_);
        smallest_ = search_ ? search_->smallest_budget() : widest_window(shape_, shape_.pages).pages;
    }

    std::vector<CurvePoint> run(uint64_t least, uint64_t most, size_t points) {
        const uint64_t first = std::max(least, smallest_);
        const uint64_t last = std::min(most, shape_.total_pages);
        if (first > last) return {};
        least_ = points > 1 ? first : last;
        const size_t samples = std::max<size_t>(points, std::min(evaluations_ / evaluations_per_point, most_evaluated));
        allowance_ = std::max(least_allowance, evaluations_ / samples);
        add(last);
        const uint64_t bend = ideal_.bend(last);
        if (first < bend && bend < last && points > 3) add(bend);
        if (first < last && points > 1) add(first);
        while (points > 1 && curve_.size() + 2 <= samples) {
            const size_t at = steepest();
            if (at + 1 >= curve_.size()) break;
            add(curve_[at].pages + (curve_[at + 1].pages - curve_[at].pages) / 2);
        }
        while (curve_.size() > std::max<size_t>(points, 2)) curve_.erase(curve_.begin() + least_telling());
        return std::move(curve_);
    }

private:
    struct Excess {
        uint64_t pages;
        double ratio;  // of the best plan's step to the ideal step
    };

    // Where the curve may be furthest from a straight line. The last point if it is straight everywhere.
    size_t steepest() const {
        size_t found = curve_.size() - 1;
        double largest = 0;
        for (size_t k = 0; k + 1 < curve_.size(); k++) {
            const double area = (curve_[k].step_ns - curve_[k + 1].step_ns) *
                                static_cast<double>(curve_[k + 1].pages - curve_[k].pages - 1);
            if (area <= largest) continue;
            largest = area;
            found = k;
        }
        return found;
    }

    // The point whose removal changes the curve least.
    std::ptrdiff_t least_telling() const {
        size_t found = 1;
        double least = infinity;
        for (size_t k = 1; k + 1 < curve_.size(); k++) {
            const CurvePoint &before = curve_[k - 1], &after = curve_[k + 1];
            const double width = static_cast<double>(after.pages - before.pages);
            const double along = static_cast<double>(curve_[k].pages - before.pages);
            const double straight = before.step_ns + (after.step_ns - before.step_ns) * (along / width);
            const double area = std::fabs(straight - curve_[k].step_ns) * width;
            if (area >= least) continue;
            least = area;
            found = k;
        }
        return static_cast<std::ptrdiff_t>(found);
    }

    void add(uint64_t pages) {
        const double ideal = ideal_.step_ns(pages);
        if (pages >= shape_.total_pages) {
            note_excess(pages, 1);
            insert({pages, ideal});
        } else if (search_ && search_->left() >= least_allowance / 2) {
            const QuickSearch::Answer found = search_->run(pages, ideal * close_enough, allowance_);
            // At the smallest budget copies and computes take turns, but not a little above it.
            if (pages > smallest_) note_excess(pages, found.step_ns / ideal);
            insert({std::max(found.footprint, least_), found.step_ns});
            insert({pages, found.step_ns});
        } else {
            insert({pages, ideal * excess_at(pages)});
        }
    }

    // Keeps the curve falling: a step that is possible with less memory is possible with more.
    void insert(CurvePoint point) {
        auto at = std::lower_bound(curve_.begin(), curve_.end(), point.pages,
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
        auto at =
            std::find_if(excess_.begin(), excess_.end(), [&](const Excess& known) { return known.pages >= pages; });
        excess_.insert(at, {pages, ratio});
    }

    double excess_at(uint64_t pages) const {
        auto next =
            std::find_if(excess_.begin(), excess_.end(), [&](const Excess& known) { return known.pages >= pages; });
        if (next == excess_.end()) return excess_.empty() ? 1 : excess_.back().ratio;
        if (next == excess_.begin()) return next->ratio;
        const Excess& before = next[-1];
        return before.ratio + (next->ratio - before.ratio) * static_cast<double>(pages - before.pages) /
                                  static_cast<double>(next->pages - before.pages);
    }

    Shape shape_;
    Ideal ideal_;
    std::optional<QuickSearch> search_;
    uint64_t smallest_ = 0;  // smallest budget that runs
    uint64_t least_ = 0;     // pages of the first point
    uint64_t evaluations_ = 0;
    uint64_t allowance_ = 0;         // evaluations for each point
    std::vector<CurvePoint> curve_;  // by pages
    std::vector<Excess> excess_;     // by pages
};

}  // namespace

std::vector<CurvePoint> step_curve(const Problem& problem, uint64_t least_pages, uint64_t most_pages, size_t points) {
    if (!well_formed(problem) || points == 0) return {};
    return CurveMaker(problem).run(least_pages, most_pages, points);
}

}  // namespace stagehand::policy
