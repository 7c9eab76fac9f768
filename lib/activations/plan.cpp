#include "activations/plan.h"

#include <algorithm>
#include <utility>

#include "activations/evaluator.h"
#include "activations/search.h"
#include "activations/timeline.h"

namespace stagehand::activations {

namespace {

// The events that the evaluations of one question may pass. So the time does not depend on the number of storages.
constexpr uint64_t most_events = 30'000'000;

// The sums of the changes: a point for the memory after each moment, and one for more memory within the moment.
std::vector<MemoryPoint> memory_of(std::vector<MemoryChange> changes) {
    std::stable_sort(changes.begin(), changes.end(),
                     [](const MemoryChange& a, const MemoryChange& b) { return a.ns < b.ns; });
    std::vector<MemoryPoint> points;
    int64_t memory = 0;
    for (size_t i = 0; i < changes.size();) {
        const double now = changes[i].ns;
        const int64_t before = memory;
        int64_t most = memory;
        for (; i < changes.size() && changes[i].ns == now; i++) most = std::max(most, memory += changes[i].bytes);
        const uint64_t ns = now < 0x1p64 ? static_cast<uint64_t>(now) : UINT64_MAX;
        if (most > std::max(before, memory)) points.push_back({ns, static_cast<uint64_t>(most)});
        points.push_back({ns, static_cast<uint64_t>(memory)});
    }
    return points;
}

// Whether the step is well formed and the fates are possible.
bool can_be(const TrainingStep& step, std::span<const Fate> fates) {
    if (!well_formed(step) || fates.size() != step.storages.size()) return false;
    for (size_t i = 0; i < fates.size(); i++)
        if (!possible(step, step.storages[i], fates[i])) return false;
    return true;
}

}  // namespace

std::optional<ActivationCost> activation_cost(const TrainingStep& step, std::span<const Fate> fates,
                                              uint64_t target_bytes) {
    if (!can_be(step, fates)) return std::nullopt;
    const ActivationTimeline timeline(step);
    return ActivationEvaluator(timeline).cost(fates, target_bytes);
}

std::optional<SimulatedStep> simulate_activations(const TrainingStep& step, std::span<const Fate> fates,
                                                  uint64_t target_bytes) {
    if (!can_be(step, fates)) return std::nullopt;
    const ActivationTimeline timeline(step);
    ActivationEvaluator evaluator(timeline);
    std::vector<MemoryChange> changes;
    SimulatedStep simulated;
    simulated.cost = evaluator.cost(fates, target_bytes, &changes);
    simulated.plain_peak_bytes = evaluator.plain_peak();
    simulated.memory = memory_of(std::move(changes));
    return simulated;
}

std::optional<ActivationPlan> fastest_activations(const TrainingStep& step, uint64_t target_bytes) {
    if (!well_formed(step)) return std::nullopt;
    const ActivationTimeline timeline(step);
    ActivationSearch search(timeline);
    FoundFates found = search.fastest(target_bytes, most_events);
    return ActivationPlan{std::move(found.fates), found.cost, search.plain_peak_bytes(), target_bytes,
                          search.bounds().least_step_ns(target_bytes)};
}

std::optional<ActivationPlan> leanest_activations(const TrainingStep& step, double target_ns) {
    if (!well_formed(step)) return std::nullopt;
    const ActivationTimeline timeline(step);
    ActivationSearch search(timeline);
    const uint64_t bound = search.bounds().least_peak(target_ns);
    FoundFates best = search.fastest(UINT64_MAX, 0);
    // Everything is kept at the highest target that makes sense. The time falls as the target rises. The first targets
    // lie close to the bound, and then further and further away.
    uint64_t works = best.cost.peak_bytes, fails = bound - std::min<uint64_t>(bound, 1);
    bool enclosed = false;
    while (static_cast<double>(step.end_ns) <= target_ns && works > fails + works / 8192 &&
           search.effort() < most_events) {
        uint64_t middle = fails + (works - fails) / 2;
        if (!enclosed) middle = std::min(middle, fails + 3 * (fails - std::min(fails, bound)) + works / 2048 + 1);
        FoundFates found = search.fast_enough(middle, target_ns, most_events / 16, best);
        if (found.cost.step_ns <= target_ns && found.cost.peak_bytes <= middle) {
            best = std::move(found);
            works = middle;
            enclosed = true;
        } else {
            fails = middle;
        }
    }
    // The least time at this peak.
    FoundFates last = search.fastest(works, most_events / 4, &best);
    if (last.cost.step_ns <= best.cost.step_ns && last.cost.peak_bytes <= works) best = std::move(last);
    return ActivationPlan{std::move(best.fates), best.cost, search.plain_peak_bytes(), works,
                          static_cast<double>(bound)};
}

}  // namespace stagehand::activations
