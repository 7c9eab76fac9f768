#include "activations/timeline.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace stagehand::activations {

namespace {

// All storages, each one before its inputs.
std::vector<uint32_t> sort_consumers_first(std::span<const SavedStorage> storages) {
    std::vector<uint32_t> consumers(storages.size()), order;
    for (const SavedStorage& storage : storages)
        for (uint32_t input : storage.inputs) consumers[input]++;
    order.reserve(storages.size());
    // Later storages come first, as far as the inputs allow.
    for (uint32_t i = static_cast<uint32_t>(storages.size()); i-- > 0;)
        if (consumers[i] == 0) order.push_back(i);
    for (size_t k = 0; k < order.size(); k++)
        for (uint32_t input : storages[order[k]].inputs)
            if (--consumers[input] == 0) order.push_back(input);
    return order;
}

bool in_order(const TrainingStep& step) {
    uint64_t before = 0;
    for (const SavedStorage& storage : step.storages) {
        const uint64_t released = std::max(storage.released_ns, storage.produced_ns);
        if (storage.produced_ns < before || storage.first_use_ns < released ||
            storage.last_use_ns < storage.first_use_ns || storage.last_use_ns > step.end_ns)
            return false;
        before = storage.produced_ns;
    }
    before = 0;
    for (const MemoryPoint& other : step.others) {
        if (other.ns < before || other.ns > step.end_ns) return false;
        before = other.ns;
    }
    return step.forward_end_ns <= step.end_ns;
}

}  // namespace

// A walk in depth. `at` is the number of the storage's inputs that the walk has followed.
std::optional<uint32_t> computed_from_itself(std::span<const SavedStorage> storages) {
    enum class Seen : uint8_t { no, on_the_way, done };
    struct Place {
        uint32_t storage;
        size_t at = 0;
    };
    std::vector<Seen> seen(storages.size(), Seen::no);
    std::vector<Place> way;
    for (uint32_t start = 0; start < storages.size(); start++) {
        if (seen[start] == Seen::no) way.push_back({start});
        while (!way.empty()) {
            Place& place = way.back();
            seen[place.storage] = Seen::on_the_way;
            if (place.at == storages[place.storage].inputs.size()) {
                seen[place.storage] = Seen::done;
                way.pop_back();
                continue;
            }
            const uint32_t input = storages[place.storage].inputs[place.at++];
            if (seen[input] == Seen::on_the_way) return input;
            if (seen[input] == Seen::no) way.push_back({input});
        }
    }
    return std::nullopt;
}

bool well_formed(const TrainingStep& step) {
    uint64_t bytes = 0, times = step.end_ns, inputs = 0;
    if (step.storages.size() > UINT32_MAX / 8 || step.others.size() > UINT32_MAX / 8 || times > most_exact)
        return false;
    for (const SavedStorage& storage : step.storages) {
        if (storage.bytes > most_exact || storage.recompute_ns > most_exact) return false;
        if ((bytes += storage.bytes) > most_exact || (times += storage.recompute_ns) > most_exact) return false;
        if ((inputs += storage.inputs.size()) > most_inputs) return false;
        for (uint32_t input : storage.inputs)
            if (input >= step.storages.size()) return false;
    }
    for (const MemoryPoint& other : step.others)
        if (other.bytes > most_exact) return false;
    if (step.copy_latency_ns > most_exact || std::isnan(step.to_host.left()) || std::isnan(step.to_device.left()))
        return false;
    return in_order(step) && !computed_from_itself(step.storages);
}

bool spillable(const TrainingStep& step, const SavedStorage& storage) {
    return storage.bytes >= std::max<uint64_t>(1, step.least_spill_bytes) && step.to_host.left() > 0 &&
           step.to_device.left() > 0;
}

bool possible(const TrainingStep& step, const SavedStorage& storage, Fate fate) {
    return fate == Fate::keep || (fate == Fate::spill ? spillable(step, storage) : storage.cheap);
}

ActivationTimeline::ActivationTimeline(const TrainingStep& well_formed_step)
    : step(&well_formed_step),
      produced(storages()),
      released(storages()),
      first_use(storages()),
      last_use(storages()),
      consumers_first(sort_consumers_first(well_formed_step.storages)) {
    events.reserve(4 * size_t{storages()} + step->others.size() + 1);
    bytes.reserve(storages());
    for (uint32_t i = 0; i < storages(); i++) {
        const SavedStorage& storage = step->storages[i];
        bytes.push_back(static_cast<int64_t>(storage.bytes));
        const bool late = storage.last_use_ns == storage.first_use_ns;
        events.push_back({storage.produced_ns, i, StepMoment::produced});
        events.push_back({std::max(storage.released_ns, storage.produced_ns), i, StepMoment::released});
        events.push_back({storage.first_use_ns, i, StepMoment::first_use});
        events.push_back({storage.last_use_ns, i, late ? StepMoment::late_last_use : StepMoment::last_use});
    }
    for (uint32_t k = 0; k < step->others.size(); k++)
        events.push_back({step->others[k].ns, k, StepMoment::others_change});
    events.push_back({step->forward_end_ns, 0, StepMoment::forward_end});
    // A storage that the forward does not use any more is released before the next one is saved.
    auto rank = [](StepMoment moment) { return moment == StepMoment::released ? StepMoment::produced : moment; };
    std::sort(events.begin(), events.end(), [&](const StepEvent& a, const StepEvent& b) {
        return std::tuple(a.ns, rank(a.moment), a.index, a.moment) <
               std::tuple(b.ns, rank(b.moment), b.index, b.moment);
    });
    for (uint32_t place = 0; place < events.size(); place++) {
        const StepEvent& event = events[place];
        switch (event.moment) {
            case StepMoment::last_use:
            case StepMoment::late_last_use:
                last_use[event.index] = place;
                break;
            case StepMoment::produced:
                produced[event.index] = place;
                break;
            case StepMoment::released:
                released[event.index] = place;
                break;
            case StepMoment::first_use:
                first_use[event.index] = place;
                break;
            case StepMoment::forward_end:
                forward_end = place;
                break;
            case StepMoment::others_change:
                break;
        }
    }
}

bool ActivationTimeline::spillable(uint32_t storage) const {
    return activations::spillable(*step, step->storages[storage]);
}

bool ActivationTimeline::possible(uint32_t storage, Fate fate) const {
    return activations::possible(*step, step->storages[storage], fate);
}

}  // namespace stagehand::activations
