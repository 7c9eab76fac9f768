// Training steps as the library's planner takes them, from the sizes of a transformer: plain, and with a checkpoint for
// each layer.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include <stagehand/stagehand.h>

#include "transformer.h"

namespace stagehand::cli::training {

// The activations point into `inputs`. Not copyable for that reason.
struct RecordedStep {
    std::vector<sh_activation> activations;
    std::deque<std::vector<std::uint32_t>> inputs;
    std::vector<sh_memory_point> others;  // weights, gradients, and what operations hold meanwhile
    std::uint64_t forward_end_ns = 0;
    std::uint64_t end_ns = 0;

    RecordedStep() = default;
    RecordedStep(RecordedStep&&) = default;
    RecordedStep& operator=(RecordedStep&&) = default;

    // Its lists are those of this object.
    sh_training_step step() const;
};

// The forward saves every tensor of each layer.
RecordedStep plain_step(const Shape& shape, const Rates& rates);

// The forward saves only the input of each layer. The backward of a layer begins with another forward of the layer, up
// to the last tensor that is saved, as torch.utils.checkpoint does without reentry.
RecordedStep checkpointed_step(const Shape& shape, const Rates& rates);

// The rate of arithmetic with which a plain step takes `step_ns`. Not positive if moving memory alone takes longer.
double rate_for(const Shape& shape, double memory_bytes_per_second, double step_ns);

}  // namespace stagehand::cli::training
