// Training steps for the tests of the activation planner. A RecordedStep owns the data that a TrainingStep points to.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "activations/plan.h"

namespace stagehand::activations::test {

struct RecordedStep {
    std::vector<SavedStorage> storages;
    std::vector<MemoryPoint> others;
    std::deque<std::vector<uint32_t>> inputs;  // that the storages point to
    TrainingStep limits;                       // all but the lists

    SavedStorage& add(uint64_t bytes, uint64_t produced_ns, uint64_t first_use_ns, uint64_t last_use_ns) {
        storages.push_back({bytes, produced_ns, produced_ns, first_use_ns, last_use_ns});
        return storages.back();
    }
    // Makes the last storage cheap.
    void recompute(uint64_t ns, std::vector<uint32_t> from = {}) {
        inputs.push_back(std::move(from));
        storages.back().cheap = true;
        storages.back().recompute_ns = ns;
        storages.back().inputs = inputs.back();
    }
    void set_link(double to_host, double to_device) {
        limits.to_host.bytes_per_ns = to_host;
        limits.to_device.bytes_per_ns = to_device;
    }
    TrainingStep step() const {
        TrainingStep step = limits;
        step.storages = storages;
        step.others = others;
        return step;
    }
    uint64_t plain_peak() const {
        return activation_cost(step(), std::vector<Fate>(storages.size(), Fate::keep), UINT64_MAX)->peak_bytes;
    }
};

// A transformer of `layers` layers: forward, then backward, whose gradients pile up beside the weights. Each layer
// saves 16.5 units of the bytes of its input, of which 6 are cheap: the outputs of both norms and of the activation
// function. `split` cuts each storage into so many, for large steps.
struct Transformer {
    uint32_t layers = 16;
    uint64_t unit = uint64_t{64} << 20;
    uint64_t layer_weights = uint64_t{384} << 20;  // bytes, and as many of gradients
    uint64_t held = uint64_t{480} << 20;           // what the operations hold meanwhile
    uint64_t forward_ns = 108'000'000;
    uint64_t backward_ns = 217'000'000;
    double link = 55.5;
    uint64_t recompute_ns = 33'000;  // of a unit: its bytes are read and written at the speed of the device's memory
    uint32_t split = 1;

    uint64_t plain_ns() const { return forward_ns + backward_ns; }

    RecordedStep record() const {
        // What a layer saves, in order: the units, and the place of the cheap storage's input in the layer.
        struct Saved {
            double units;
            int input = -1;
        };
        static constexpr Saved saved[] = {{1}, {1, 0}, {3}, {0.5}, {1}, {1}, {1, 5}, {4}, {4, 7}};
        constexpr uint32_t kinds = std::size(saved);
        RecordedStep step;
        const uint32_t count = kinds * split;
        const double forward = static_cast<double>(forward_ns) / (layers * count);
        const double backward = static_cast<double>(backward_ns) / (layers * count);
        for (uint32_t k = 0; k < layers * count; k++) {
            const uint32_t layer = k / count, kind = k % count / split, part = k % split;
            const double turn = static_cast<double>(layers * count - 1 - k);
            const auto use = forward_ns + static_cast<uint64_t>(turn * backward);
            step.add(static_cast<uint64_t>(saved[kind].units * static_cast<double>(unit)) / split,
                     static_cast<uint64_t>((k + 1) * forward), use,
                     forward_ns + static_cast<uint64_t>((turn + 1) * backward));
            if (saved[kind].input < 0) continue;
            const uint32_t input = layer * count + static_cast<uint32_t>(saved[kind].input) * split + part;
            step.recompute(static_cast<uint64_t>(saved[kind].units * static_cast<double>(recompute_ns)) / split,
                           {input});
        }
        step.others.push_back({0, layers * layer_weights + held});
        for (uint32_t layer = 1; layer <= layers; layer++)
            step.others.push_back(
                {forward_ns + layer * backward_ns / (layers + 1), (layers + layer) * layer_weights + held});
        step.limits.forward_end_ns = forward_ns;
        step.limits.end_ns = plain_ns();
        step.limits.copy_latency_ns = 10'000;
        step.set_link(link, link);
        return step;
    }
};

// Small ones of every kind, on a link of about 1 byte per ns. Most have the order of a stack, as steps have.
inline RecordedStep random_step(std::mt19937& random, uint32_t most_storages) {
    RecordedStep step;
    auto below = [&](uint64_t bound) { return random() % std::max<uint64_t>(1, bound); };
    const uint32_t count = 2 + static_cast<uint32_t>(below(most_storages - 1));
    const uint64_t gap = 1000 + below(3000);
    const bool stack = below(4) != 0, equal_sizes = below(3) == 0;
    const uint64_t size = 500 + below(4000);
    const double cost = std::pow(10.0, static_cast<double>(below(200)) / 100 - 2);  // of a recompute, ns per byte
    uint64_t now = below(500);
    std::vector<uint64_t> places;
    for (uint32_t i = 0; i < count; i++) {
        places.push_back(now);
        now += below(6) == 0 ? 0 : 1 + below(gap);
    }
    const uint64_t forward_end = now;
    now += below(500);
    std::vector<uint64_t> uses(count);
    for (uint32_t k = count; k-- > 0; now += below(2 * gap)) uses[k] = now;
    if (!stack) std::shuffle(uses.begin(), uses.end(), random);
    const uint64_t end = now + below(2000);
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t last = std::min(end, uses[i] + below(3) * below(2 * gap));
        SavedStorage& storage = step.add(equal_sizes ? size : 1 + below(2 * size), places[i], uses[i], last);
        if (below(3) == 0) storage.released_ns = places[i] + below(forward_end - places[i] + 1);
        if (below(5) < 2) {
            std::vector<uint32_t> from;
            for (uint32_t k = 0; i > 0 && k < below(3); k++) from.push_back(static_cast<uint32_t>(below(i)));
            const double ns = cost * static_cast<double>(storage.bytes) * (0.2 + static_cast<double>(below(100)) / 60);
            step.recompute(static_cast<uint64_t>(ns), std::move(from));
        }
    }
    step.others.push_back({0, below(3 * size)});
    for (uint64_t at = forward_end; below(4) != 0 && at <= end; at += 1 + below(gap))
        step.others.push_back({at, step.others.back().bytes + below(size)});
    step.limits.forward_end_ns = forward_end;
    step.limits.end_ns = end;
    const double rate = std::pow(10.0, static_cast<double>(below(140)) / 100 - 0.7);
    step.set_link(rate, rate * (0.5 + static_cast<double>(below(100)) / 80));
    if (below(3) == 0) step.limits.copy_latency_ns = below(300);
    if (below(4) == 0) step.limits.ahead_bytes = below(4 * size);
    if (below(4) == 0) step.limits.in_flight_bytes = below(4 * size);
    if (below(4) == 0) step.limits.least_spill_bytes = below(size);
    if (below(5) == 0) step.limits.to_host.weight_bytes_per_ns = rate / 3;
    return step;
}

}  // namespace stagehand::activations::test
