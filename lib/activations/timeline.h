// ActivationTimeline: the events of a recorded step in their order. A choice of fates moves no event of this list: it
// only changes what happens at the event. So each evaluation is one pass, without sorting.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "activations/plan.h"

namespace stagehand::activations {

// The sums of times and of bytes stay exact in a double and in an int64_t up to this.
constexpr uint64_t most_exact = uint64_t{1} << 52;
// Each evaluation of a choice reads the inputs of all storages.
constexpr uint64_t most_inputs = uint64_t{1} << 24;

// A storage that is computed from itself, by way of its inputs. The inputs must be storages.
std::optional<uint32_t> computed_from_itself(std::span<const SavedStorage> storages);

// Whether lists are in order, times of each storage are in order, and no storage is computed from itself.
bool well_formed(const TrainingStep& step);

bool spillable(const TrainingStep& step, const SavedStorage& storage);
bool possible(const TrainingStep& step, const SavedStorage& storage, Fate fate);

// In the order of events of the same time. Memory is freed before other memory is taken.
enum class StepMoment : uint8_t {
    last_use,
    others_change,
    produced,
    released,
    forward_end,
    first_use,
    late_last_use,  // of a storage whose last use is its first one
};

struct StepEvent {
    uint64_t ns = 0;
    uint32_t index = 0;  // of the storage, or of the other memory
    StepMoment moment = StepMoment::last_use;
};

struct ActivationTimeline {
    explicit ActivationTimeline(const TrainingStep& well_formed_step);

    bool spillable(uint32_t storage) const;
    bool possible(uint32_t storage, Fate fate) const;
    uint32_t storages() const { return static_cast<uint32_t>(step->storages.size()); }

    const TrainingStep* step;
    std::vector<StepEvent> events;
    std::vector<int64_t> bytes;  // of each storage: close together, because every evaluation reads all of them
    // The place of each storage's events in `events`.
    std::vector<uint32_t> produced, released, first_use, last_use;
    uint32_t forward_end = 0;
    std::vector<uint32_t> consumers_first;  // all storages, each one before its inputs
};

}  // namespace stagehand::activations
