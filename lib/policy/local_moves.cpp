#include "policy/local_moves.h"

#include <algorithm>
#include <utility>

namespace stagehand::policy {

namespace {

// The starts of a problem of one unit.
constexpr uint64_t most_starts = 96;
// A plan that is longer by this part is accepted, so that the search leaves a local minimum. The part falls to zero
// after four fifths of the evaluations.
constexpr double first_slack = 0.004;
constexpr double slack_falls = 1.25;

}  // namespace

void LocalMoves::shorten(uint64_t evaluations) {
    // Small problems have many local minima and are quick to search. So they get many starts, and every second start is
    // far away.
    const uint64_t runs = std::max<uint64_t>(1, most_starts / shape_.order.size());
    for (uint64_t run = 0; run < runs; run++) {
        Found start = frontier_.fastest();
        if (run % 2) scatter(start.candidate);
        if (run % 4 == 2)
            for (int k = 0; k < 3; k++) change(start.candidate, false);
        if (std::optional<Cost> cost = evaluator_.cost(start.candidate)) {
            start.cost = *cost;
            descend(std::move(start), evaluations / runs);
        }
    }
}

// Replaces the candidate by a random plan, with a ring of any size that the budget allows.
void LocalMoves::scatter(Candidate& candidate) {
    uint32_t budget = static_cast<uint32_t>(std::min<uint64_t>(shape_.problem->budget_pages, shape_.total_pages));
    uint32_t ring = 1 + below(1 + below(budget));  // favours small rings
    uint64_t needed = shape_.total_pages - budget + ring;
    std::vector<uint32_t> parts(candidate.parts.size());
    for (uint64_t tries = 8 * shape_.order.size(); needed && tries > 0; tries--) {
        uint32_t unit = shape_.order[below(static_cast<uint32_t>(shape_.order.size()))];
        uint32_t most = std::min(shape_.pages[unit], ring);
        if (parts[unit] >= most) continue;
        uint32_t more = 1 + below(most - parts[unit]);
        if (shape_.problem->units[unit].whole) more = shape_.pages[unit] <= ring ? shape_.pages[unit] : 0;
        more = static_cast<uint32_t>(std::min<uint64_t>(more, needed));
        if (shape_.problem->units[unit].whole && more != shape_.pages[unit]) continue;
        parts[unit] += more;
        needed -= more;
    }
    if (needed == 0) candidate = {std::move(parts), ring, below(2) ? Layout::packed : Layout::spread};
}

void LocalMoves::descend(Found current, uint64_t evaluations) {
    for (uint64_t k = 0; k < evaluations; k++) {
        if (!change(current.candidate, false)) continue;
        std::optional<Cost> cost = evaluator_.cost(current.candidate);
        const double part = static_cast<double>(k) / static_cast<double>(evaluations);
        const double slack = first_slack * std::max(0.0, 1 - slack_falls * part);
        if (cost && cost->step_ns <= current.cost.step_ns * (1 + slack * below(1024) / 1024)) {
            current.cost = *cost;
            frontier_.offer(current.candidate, *cost);
        } else {
            undo(current.candidate);
        }
    }
}

void LocalMoves::slim(uint64_t evaluations) {
    Found current = frontier_.leanest();
    for (uint64_t k = 0; k < evaluations; k++) {
        if (!change(current.candidate, true)) continue;
        std::optional<Cost> cost = evaluator_.cost(current.candidate);
        if (cost && cost->step_ns <= frontier_.limit_ns() && cost->bytes <= current.cost.bytes) {
            current.cost = *cost;
            frontier_.offer(current.candidate, *cost);
        } else {
            undo(current.candidate);
        }
    }
}

int64_t LocalMoves::some_pages(uint32_t unit) {
    // Mostly one page, sometimes up to an eighth of the unit.
    uint32_t most = std::max(2u, shape_.pages[unit] / 8);
    uint32_t dice = below(8);
    return dice < 4 ? 1 : dice < 7 ? 1 + below(std::min(most, 4u)) : 1 + below(most);
}

// Makes a random change. Returns false without any change if the chosen one is not possible.
bool LocalMoves::change(Candidate& candidate, bool slimmer) {
    before_.units = 0;
    before_.ring = candidate.ring;
    before_.layout = candidate.layout;
    const uint32_t count = static_cast<uint32_t>(shape_.order.size());
    uint32_t place = below(count);
    uint32_t unit = shape_.order[place];
    uint32_t other = shape_.order[below(2) ? (place + count + below(7) - 3) % count : below(count)];
    uint32_t dice = below(16);
    bool changed;
    if (dice < 6) {
        int64_t pages = some_pages(unit);
        changed = shift(candidate, unit, -pages) && other != unit && shift(candidate, other, pages);
    } else if (dice < (slimmer ? 8u : 10u)) {
        changed = shift(candidate, unit, some_pages(unit));
    } else if (dice < 14) {
        changed = shift(candidate, unit, -some_pages(unit));
    } else if (dice < 15) {
        // Gives up a page of the budget, or takes one that an earlier change of this kind left.
        candidate.ring += below(2) ? 1 : -1;
        changed = candidate.ring > 0;
    } else {
        candidate.layout = candidate.layout == Layout::packed ? Layout::spread : Layout::packed;
        changed = true;
    }
    if (!changed) undo(candidate);
    return changed;
}

// Moves pages between a unit's resident prefix and its part. The ring takes the difference, so that the total stays.
bool LocalMoves::shift(Candidate& candidate, uint32_t unit, int64_t pages) {
    uint32_t now = candidate.parts[unit];
    uint32_t all = shape_.pages[unit];
    int64_t next = shape_.problem->units[unit].whole ? (pages > 0 ? all : 0) : std::clamp<int64_t>(now + pages, 0, all);
    int64_t ring = int64_t{candidate.ring} + next - now;
    if (next == now || ring < 1 || ring > int64_t{UINT32_MAX}) return false;
    before_.unit[before_.units] = unit;
    before_.part[before_.units++] = now;
    candidate.parts[unit] = static_cast<uint32_t>(next);
    candidate.ring = static_cast<uint32_t>(ring);
    return true;
}

void LocalMoves::undo(Candidate& candidate) {
    while (before_.units > 0) {
        before_.units--;
        candidate.parts[before_.unit[before_.units]] = before_.part[before_.units];
    }
    candidate.ring = before_.ring;
    candidate.layout = before_.layout;
}

}  // namespace stagehand::policy
