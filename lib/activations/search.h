// ActivationSearch: looks for fates that meet a target in the least time.
//
// The families. The cheapest bytes are recomputed. Of the other storages, as many as needed are spilled, in the order
// of saving: the earliest leave first and are used last. The number of the recomputed storages is the unknown. The
// bounds give a guess, and the search tries others around it. Where the latency of copies matters, large ones go first.
//
// The moves. Then single storages, pairs of storages, and runs of neighbours change their fates, as long as the result
// becomes better. A few storages are tried in all pairs, from several starts, and again after random changes.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "activations/bounds.h"
#include "activations/evaluator.h"
#include "activations/plan.h"
#include "activations/timeline.h"

namespace stagehand::activations {

struct FoundFates {
    std::vector<Fate> fates;
    ActivationCost cost;
};

class ActivationSearch {
public:
    explicit ActivationSearch(const ActivationTimeline& timeline);

    // `effort`: the events that evaluations may pass, more or less. `known`: a choice to begin with, beside others.
    FoundFates fastest(uint64_t target_bytes, uint64_t effort, const FoundFates* known = nullptr);
    // Ends with the first choice that meets the target and is no slower than `enough_ns`. Looks for no other choice.
    FoundFates fast_enough(uint64_t target_bytes, double enough_ns, uint64_t effort, const FoundFates& known);

    const ActivationBounds& bounds() const { return bounds_; }
    uint64_t effort() const { return evaluator_.effort(); }  // so far
    uint64_t plain_peak_bytes() { return evaluator_.plain_peak(); }

private:
    void begin(uint64_t target_bytes, double most_recompute_ns);
    FoundFates search(uint64_t effort_end, const FoundFates* known);
    bool better(const ActivationCost& a, const ActivationCost& b) const;
    void offer(const std::vector<Fate>& fates);
    void offer_family(size_t recomputed, int64_t large, uint64_t effort_end);
    void try_families(uint64_t effort_end);
    bool away_at(uint32_t place, uint32_t storage) const;

    void try_all_moves(uint64_t effort_end);
    bool good_enough() const;
    void descend(FoundFates& from, bool pairs, uint64_t effort_end);
    bool try_second_moves(FoundFates& from, size_t first, Fate fate, bool pairs, uint64_t effort_end);
    FoundFates found(std::vector<Fate> fates);
    void try_random_moves(uint64_t effort_end);
    bool change_some(std::vector<Fate>& fates);
    Fate another(uint32_t storage, Fate than);
    // The distributions of the standard library differ between implementations, and plans must not.
    uint32_t below(uint32_t bound) { return static_cast<uint32_t>(uint64_t{random_()} * bound >> 32); }

    const ActivationTimeline& timeline_;
    ActivationEvaluator evaluator_;
    ActivationBounds bounds_;
    std::vector<uint32_t> recompute_order_;
    std::mt19937 random_;

    // Of the current question.
    uint64_t target_ = 0;
    double enough_ns_ = 0;
    uint32_t kicks_ = 0;
    std::vector<uint32_t> useful_;         // the storages that can be away while too much memory is in use, as saved
    std::vector<uint32_t> recompute_;      // those of them that are cheap, the cheapest bytes first
    std::vector<double> recompute_bytes_;  // the bytes of the first k + 1 of them
    FoundFates best_;
    int64_t large_ = 0;  // of the best family of the last question: what counts as a large storage
};

}  // namespace stagehand::activations
