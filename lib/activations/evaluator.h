// ActivationEvaluator: the exact simulation of a step for any choice of fates. One evaluator serves a whole search and
// keeps its buffers.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "activations/plan.h"
#include "activations/timeline.h"

namespace stagehand::activations {

// A change of the memory in use.
struct MemoryChange {
    double ns = 0;
    int64_t bytes = 0;
};

class ActivationEvaluator {
public:
    explicit ActivationEvaluator(const ActivationTimeline& timeline);

    // All fates must be possible. `changes`: gets all changes of the memory, not by time.
    ActivationCost cost(std::span<const Fate> fates, uint64_t target_bytes,
                        std::vector<MemoryChange>* changes = nullptr);

    // By event: the memory in use just after it, if every copy took no time and no restore came ahead of its use.
    // Waiting cannot push the memory below these levels. Valid until the next call.
    std::span<const int64_t> settled_levels(std::span<const Fate> fates);
    uint64_t settled_peak(std::span<const Fate> fates);
    // If everything is kept.
    uint64_t plain_peak();

    // The events and inputs that all calls passed, as a measure of the effort. The events of cost() count three times.
    uint64_t effort() const { return effort_; }

private:
    friend class StepRun;
    static constexpr uint32_t none = UINT32_MAX;

    void find_needs(std::span<const Fate> fates);
    void find_levels(std::span<const Fate> fates);
    void find_restores(std::span<const Fate> fates);
    void find_restore_places(int64_t target_bytes);
    uint32_t need_place(uint32_t storage) const { return timeline_.first_use[need_of_[storage]]; }

    const ActivationTimeline& timeline_;
    const TrainingStep& step_;
    uint64_t effort_ = 0;
    uint64_t inputs_ = 0;  // of all storages

    // By storage. A storage is needed at the first use of `need_of`: its own, or that of a storage that is computed
    // from it again. If that storage outlives the last use of its input, the input is freed after the recompute. Lists
    // name the storages that are needed or freed at the same first use. Those of the needed ones have inputs first.
    std::vector<uint32_t> need_of_, freed_by_, first_needed_, next_needed_, first_freed_, next_freed_;
    std::vector<int64_t> levels_;  // by event

    std::vector<uint32_t> restores_;                     // the spilled storages, by need
    std::vector<uint32_t> restore_places_;               // by restore: the event after which it can start
    std::vector<std::pair<uint32_t, int64_t>> highest_;  // events whose level no later event reaches

    // Of the run, by storage: the end of the copy to the host; whether it has ended; whether the forward uses it.
    std::vector<double> copied_;
    std::vector<uint8_t> copy_ended_, in_forward_;
    std::vector<uint32_t> copies_;      // the spilled storages, in the order of their copies
    std::vector<double> restore_ends_;  // by restore
};

}  // namespace stagehand::activations
