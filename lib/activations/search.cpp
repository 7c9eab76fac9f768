#include "activations/search.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace stagehand::activations {

namespace {

// Up to so many storages, all pairs of moves are tried.
constexpr size_t most_for_all_moves = 28;
// Random changes, each with a descent after it. Fewer if many targets are tried.
constexpr uint32_t most_kicks = 150;
constexpr uint32_t fewer_kicks = 60;

}  // namespace

ActivationSearch::ActivationSearch(const ActivationTimeline& timeline)
    : timeline_(timeline), evaluator_(timeline), bounds_(timeline) {
    const auto& storages = timeline.step->storages;
    for (uint32_t i = timeline.storages(); i-- > 0;)
        if (storages[i].cheap && storages[i].bytes > 0) recompute_order_.push_back(i);
    // Of equally cheap ones those that were saved last come first: they could not leave before the forward's end.
    std::stable_sort(recompute_order_.begin(), recompute_order_.end(), [&](uint32_t a, uint32_t b) {
        return static_cast<double>(storages[a].recompute_ns) * static_cast<double>(storages[b].bytes) <
               static_cast<double>(storages[b].recompute_ns) * static_cast<double>(storages[a].bytes);
    });
}

FoundFates ActivationSearch::fastest(uint64_t target_bytes, uint64_t effort, const FoundFates* known) {
    enough_ns_ = bounds_.least_step_ns(target_bytes) * 1.0005;
    kicks_ = most_kicks;
    begin(target_bytes, std::numeric_limits<double>::infinity());
    return search(evaluator_.effort() + effort, known);
}

FoundFates ActivationSearch::fast_enough(uint64_t target_bytes, double enough_ns, uint64_t effort,
                                         const FoundFates& known) {
    enough_ns_ = enough_ns;
    kicks_ = fewer_kicks;
    begin(target_bytes, enough_ns - static_cast<double>(timeline_.step->end_ns));
    return search(evaluator_.effort() + effort, &known);
}

FoundFates ActivationSearch::search(uint64_t effort_end, const FoundFates* known) {
    random_.seed(20240229);
    if (best_.cost.peak_bytes <= target_) return best_;
    if (known) offer(known->fates);
    try_families(effort_end);
    if (useful_.size() <= most_for_all_moves)
        try_all_moves(effort_end);
    else
        try_random_moves(effort_end);
    return best_;
}

// Keeps everything, and finds the storages that matter.
void ActivationSearch::begin(uint64_t target_bytes, double most_recompute_ns) {
    target_ = target_bytes;
    best_.fates.assign(timeline_.storages(), Fate::keep);
    best_.cost = evaluator_.cost(best_.fates, target_);
    const std::span<const int64_t> levels = evaluator_.settled_levels(best_.fates);
    std::vector<uint32_t> full(levels.size() + 1);  // events with too much memory in use, before this one
    for (size_t place = 0; place < levels.size(); place++)
        full[place + 1] = full[place] + (static_cast<uint64_t>(levels[place]) > target_ ? 1 : 0);
    auto useful = [&](uint32_t i) {
        return full[timeline_.first_use[i]] > full[timeline_.released[i]] && timeline_.step->storages[i].bytes > 0;
    };
    useful_.clear();
    for (uint32_t i = 0; i < timeline_.storages(); i++)
        if ((timeline_.spillable(i) || timeline_.step->storages[i].cheap) && useful(i)) useful_.push_back(i);
    recompute_.clear();
    recompute_bytes_.clear();
    double bytes = 0, ns = 0;
    for (uint32_t i : recompute_order_) {
        const double recompute_ns = static_cast<double>(timeline_.step->storages[i].recompute_ns);
        if (!useful(i) || ns + recompute_ns > most_recompute_ns) continue;
        ns += recompute_ns;
        recompute_.push_back(i);
        recompute_bytes_.push_back(bytes += static_cast<double>(timeline_.step->storages[i].bytes));
    }
}

// First the memory beyond the target, then the time, then the bytes that move or are computed again.
bool ActivationSearch::better(const ActivationCost& a, const ActivationCost& b) const {
    const uint64_t beyond_a = a.peak_bytes - std::min(a.peak_bytes, target_);
    const uint64_t beyond_b = b.peak_bytes - std::min(b.peak_bytes, target_);
    if (beyond_a != beyond_b) return beyond_a < beyond_b;
    const double tolerance = 1e-9 * b.step_ns;
    if (a.step_ns < b.step_ns - tolerance || a.step_ns > b.step_ns + tolerance) return a.step_ns < b.step_ns;
    return a.spilled_bytes + a.recomputed_bytes < b.spilled_bytes + b.recomputed_bytes;
}

void ActivationSearch::offer(const std::vector<Fate>& fates) {
    const ActivationCost cost = evaluator_.cost(fates, target_);
    if (better(cost, best_.cost)) best_ = {fates, cost};
}

bool ActivationSearch::away_at(uint32_t place, uint32_t storage) const {
    return timeline_.released[storage] <= place && timeline_.first_use[storage] > place;
}

// Spills as few as possible beside the recomputed ones: first those of at least `large` bytes, then smaller ones. Each
// round looks at the fullest event, and spills no more than this event demands. So no round goes too far. A step that
// is full at very many moments needs very many rounds. Then all others are spilled at the end of the effort.
void ActivationSearch::offer_family(size_t recomputed, int64_t large, uint64_t effort_end) {
    const int64_t target = static_cast<int64_t>(std::min<uint64_t>(target_, INT64_MAX));
    std::vector<Fate> fates(timeline_.storages(), Fate::keep);
    for (size_t k = 0; k < recomputed; k++) fates[recompute_[k]] = Fate::recompute;
    for (int64_t least : {large, int64_t{0}}) {
        for (size_t next = 0; next < useful_.size();) {
            const std::span<const int64_t> levels = evaluator_.settled_levels(fates);
            const auto fullest = std::max_element(levels.begin(), levels.end());
            const uint32_t place = static_cast<uint32_t>(fullest - levels.begin());
            if (*fullest <= target) return offer(fates);
            const bool rest = evaluator_.effort() >= effort_end;
            for (int64_t excess = *fullest - target; (rest || excess > 0) && next < useful_.size(); next++) {
                const uint32_t i = useful_[next];
                if (fates[i] != Fate::keep || !timeline_.spillable(i) || timeline_.bytes[i] < least) continue;
                fates[i] = Fate::spill;
                if (away_at(place, i)) excess -= timeline_.bytes[i];
            }
        }
    }
    offer(fates);
}

void ActivationSearch::try_families(uint64_t effort_end) {
    size_t best_count = 0;
    ActivationCost least = best_.cost;
    std::vector<std::pair<size_t, int64_t>> tried;
    const int64_t hint = std::exchange(large_, 0);
    // Of one family. An eighth of all, so that there are others to compare with.
    const uint64_t share = (effort_end - std::min(effort_end, evaluator_.effort())) / 8;
    auto attempt = [&](size_t count, int64_t large) {
        const std::pair<size_t, int64_t> family{std::min(count, recompute_.size()), large};
        if (std::find(tried.begin(), tried.end(), family) != tried.end()) return;
        if (evaluator_.effort() >= effort_end || good_enough()) return;
        tried.push_back(family);
        offer_family(family.first, large, std::min(effort_end, evaluator_.effort() + share));
        if (!better(best_.cost, least)) return;
        least = best_.cost;
        std::tie(best_count, large_) = family;
    };
    auto count_of = [&](double bytes) -> size_t {
        const auto first = recompute_bytes_.begin();
        if (bytes <= 0) return 0;
        return static_cast<size_t>(std::lower_bound(first, recompute_bytes_.end(), bytes - 0.5) - first) + 1;
    };
    const double guess = bounds_.split(target_).recomputed;
    const double all = recompute_bytes_.empty() ? 0 : recompute_bytes_.back();
    attempt(count_of(guess), hint);
    attempt(0, 0);
    attempt(count_of(guess), 0);
    attempt(recompute_.size(), 0);
    for (double part : {0.05, 0.3}) attempt(count_of(guess + part * (all - guess)), 0);
    // Small copies lose the most time to the latency.
    int64_t largest = 0;
    for (uint32_t i : useful_)
        if (timeline_.spillable(i)) largest = std::max(largest, timeline_.bytes[i]);
    const double latency_bytes = static_cast<double>(timeline_.step->copy_latency_ns) * timeline_.step->to_host.left();
    for (int64_t limit = largest; static_cast<double>(limit) < 64 * latency_bytes && limit > 0; limit /= 2)
        attempt(best_count, limit);
    for (double part : {0.15, 0.5, 0.75}) attempt(count_of(guess + part * (all - guess)), large_);
    for (double part : {0.9, 0.75, 0.5}) attempt(count_of(part * guess), large_);
    for (size_t width = std::max<size_t>(1, recompute_.size() / 16); width > 0; width /= 2) {
        const size_t center = best_count;
        attempt(center - std::min(center, width), large_);
        attempt(center + width, large_);
    }
}

Fate ActivationSearch::another(uint32_t storage, Fate than) {
    Fate found = than;
    uint32_t seen = 0;
    for (Fate fate : {Fate::keep, Fate::spill, Fate::recompute})
        if (fate != than && timeline_.possible(storage, fate) && below(++seen) == 0) found = fate;
    return found;
}

FoundFates ActivationSearch::found(std::vector<Fate> fates) {
    const ActivationCost cost = evaluator_.cost(fates, target_);
    return {std::move(fates), cost};
}

bool ActivationSearch::good_enough() const {
    return best_.cost.step_ns <= enough_ns_ && best_.cost.peak_bytes <= target_;
}

void ActivationSearch::try_all_moves(uint64_t effort_end) {
    // Everything that can be away is away: this meets every target that can be met, or almost.
    std::vector<Fate> spilled(timeline_.storages(), Fate::keep), recomputed = spilled;
    for (uint32_t i : useful_) {
        const bool cheap = timeline_.step->storages[i].cheap;
        spilled[i] = timeline_.spillable(i) ? Fate::spill : Fate::recompute;
        recomputed[i] = cheap ? Fate::recompute : Fate::spill;
    }
    for (FoundFates start : {best_, found(spilled), found(recomputed)}) {
        if (good_enough()) return;
        descend(start, true, effort_end);
        if (better(start.cost, best_.cost)) best_ = start;
    }
    if (useful_.empty()) return;  // nothing can be away
    const uint32_t count = static_cast<uint32_t>(useful_.size());
    for (uint32_t kick = 0; kick < kicks_ && !good_enough() && evaluator_.effort() < effort_end; kick++) {
        std::vector<Fate> fates = best_.fates;
        for (uint32_t changes = 1 + below(3); changes > 0; changes--) {
            const uint32_t i = useful_[below(count)];
            fates[i] = another(i, fates[i]);
        }
        FoundFates start = found(std::move(fates));
        descend(start, false, effort_end);
        if (better(start.cost, best_.cost)) {
            descend(start, true, effort_end);
            best_ = start;
        }
    }
}

// Moves single storages, or also pairs, until no such move helps.
void ActivationSearch::descend(FoundFates& from, bool pairs, uint64_t effort_end) {
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t first = 0; first < useful_.size(); first++)
            for (Fate fate : {Fate::keep, Fate::spill, Fate::recompute})
                if (fate != from.fates[useful_[first]] && timeline_.possible(useful_[first], fate) &&
                    evaluator_.effort() < effort_end)
                    moved |= try_second_moves(from, first, fate, pairs, effort_end);
    }
}

// Moves one storage, alone and then together with each later one.
bool ActivationSearch::try_second_moves(FoundFates& from, size_t first, Fate fate, bool pairs, uint64_t effort_end) {
    std::vector<Fate> fates = from.fates;
    fates[useful_[first]] = fate;
    FoundFates moved = found(fates);
    if (better(moved.cost, from.cost)) {
        from = std::move(moved);
        return true;
    }
    for (size_t second = first + 1; pairs && second < useful_.size() && evaluator_.effort() < effort_end; second++) {
        for (Fate other : {Fate::keep, Fate::spill, Fate::recompute}) {
            if (other == from.fates[useful_[second]] || !timeline_.possible(useful_[second], other)) continue;
            fates[useful_[second]] = other;
            const ActivationCost cost = evaluator_.cost(fates, target_);
            if (better(cost, from.cost)) {
                from = {std::move(fates), cost};
                return true;
            }
        }
        fates[useful_[second]] = from.fates[useful_[second]];
    }
    return false;
}

void ActivationSearch::try_random_moves(uint64_t effort_end) {
    std::vector<Fate> fates = best_.fates;
    while (evaluator_.effort() < effort_end) {
        if (good_enough()) return;
        if (!change_some(fates)) continue;
        const uint64_t beyond = best_.cost.peak_bytes - std::min(best_.cost.peak_bytes, target_);
        if (evaluator_.settled_peak(fates) <= target_ + beyond) {
            const ActivationCost cost = evaluator_.cost(fates, target_);
            if (better(cost, best_.cost)) {
                best_ = {fates, cost};
                continue;
            }
        }
        fates = best_.fates;
    }
}

// One storage, two storages, or two runs of neighbours. Half of the second ones lie near the first ones.
bool ActivationSearch::change_some(std::vector<Fate>& fates) {
    const uint32_t count = static_cast<uint32_t>(useful_.size());
    const uint32_t first = below(count);
    const uint32_t dice = below(8);
    const uint32_t second = below(2) ? (first + count + below(15) - 7) % count : below(count);
    const uint32_t width = dice < 5 ? 1 : 1 + below(1 + below(1 + count / 4));
    bool changed = false;
    auto change_run = [&](uint32_t from, bool back) {
        const uint32_t sample = useful_[from];
        const Fate old = fates[sample], wanted = back ? Fate::keep : another(sample, old);
        for (uint32_t k = from; k < std::min(count, from + width); k++) {
            Fate& fate = fates[useful_[k]];
            if (fate != old || wanted == old || !timeline_.possible(useful_[k], wanted)) continue;
            fate = wanted;
            changed = true;
        }
    };
    change_run(first, false);
    if (dice > 0 && second != first) change_run(second, below(3) > 0);
    return changed;
}

}  // namespace stagehand::activations
