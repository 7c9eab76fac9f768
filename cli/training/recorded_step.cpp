#include "recorded_step.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace stagehand::cli::training {

namespace {

// Writes a step down, operation by operation.
class Recorder {
public:
    Recorder(const Shape& shape, const Rates& rates) : shape_(shape), rates_(rates), layer_(layer_of(shape)) {
        memory(0);
    }

    // The forward of a layer. With `kept` its tensors stay until the backward. Otherwise only the input of the layer
    // does, and the others stay until the forward has used them. `again` stops after the last saved tensor.
    void forward(bool kept, bool again = false) {
        const std::size_t first = step_.activations.size();
        std::vector<std::size_t> places;
        const auto save = [&](std::uint32_t made_by) {
            for (std::size_t i = 0; i < layer_.saved.size(); ++i) {
                if (layer_.saved[i].made_by == made_by && !(again && i == 0)) {
                    places.push_back(i);
                    add(layer_.saved[i], first);
                }
            }
        };
        save(SavedTensor::none);
        std::vector<std::uint64_t> ends;
        const std::size_t count = again ? last_saving() + 1 : layer_.operations.size();
        for (std::uint32_t place = 0; place < count; ++place) {
            const Operation& operation = layer_.operations[place];
            memory(bytes(operation.held));
            now_ += forward_ns(operation, shape_, rates_);
            ends.push_back(now());
            memory(0);
            save(place);
        }
        for (std::size_t k = 0; k < places.size(); ++k) {
            const SavedTensor& saved = layer_.saved[places[k]];
            sh_activation& activation = step_.activations[first + k];
            activation.released_ns = ends[std::min<std::size_t>(saved.released_by, ends.size() - 1)];
            if (!kept && places[k] != 0) {
                activation.flags = 0;
                activation.input_count = 0;
                activation.first_use_ns = activation.last_use_ns = activation.released_ns;
            }
        }
        if (again)  // the input of the layer was saved by the first forward
            firsts_again_ = first;
        else
            firsts_.push_back(first);
    }

    // The backward of the last layer whose backward is missing.
    void backward(bool checkpointed) {
        const std::size_t first = firsts_.back();
        firsts_.pop_back();
        if (checkpointed) forward(true, true);
        const auto activation = [&](std::size_t saved) -> sh_activation& {
            return step_.activations[checkpointed && saved > 0 ? firsts_again_ + saved - 1 : first + saved];
        };
        for (std::uint32_t place = static_cast<std::uint32_t>(layer_.operations.size()); place-- > 0;) {
            const Operation& operation = layer_.operations[place];
            gradient_bytes_ += operation.weights * shape_.element_bytes;
            memory(bytes(operation.backward_held));
            const std::uint64_t begin = now();
            now_ += backward_ns(operation, shape_, rates_);
            for (std::size_t i = 0; i < layer_.saved.size(); ++i) {
                if (layer_.saved[i].first_used_by == place) activation(i).first_use_ns = begin;
                if (layer_.saved[i].last_used_by == place) activation(i).last_use_ns = now();
            }
        }
        memory(0);
    }

    // The last matrix and the loss over the vocabulary: the logits stay until the end of their backward, beside the
    // logarithms of the probabilities that the loss saves.
    void loss() {
        const bool words = shape_.vocabulary > 0;
        const double width = static_cast<double>(shape_.vocabulary);
        const double ns = words ? 1e9 * head_operations(shape_) / rates_.operations_per_second : 0;
        output_bytes_ = bytes(words ? width + static_cast<double>(shape_.hidden) : static_cast<double>(shape_.hidden));
        memory(words ? bytes(width) : 0);
        now_ += ns;
        step_.forward_end_ns = now();
        memory(words ? bytes(2 * width) : 0);
        gradient_bytes_ += shape_.vocabulary * shape_.hidden * shape_.element_bytes;
        now_ += 2 * ns;
        output_bytes_ = 0;
        memory(0);
    }

    RecordedStep finish() {
        gradient_bytes_ += shape_.vocabulary * shape_.hidden * shape_.element_bytes;
        step_.end_ns = now();
        memory(0);
        return std::move(step_);
    }

private:
    std::uint64_t now() const { return static_cast<std::uint64_t>(std::llround(now_)); }
    std::uint64_t bytes(double width) const {
        return static_cast<std::uint64_t>(width * static_cast<double>(shape_.tokens() * shape_.element_bytes));
    }

    std::size_t last_saving() const {
        std::uint32_t last = 0;
        for (const SavedTensor& saved : layer_.saved)
            last = saved.made_by == SavedTensor::none ? last : std::max(last, saved.made_by);
        return last;
    }

    void memory(std::uint64_t held) {
        sh_memory_point point = SH_MEMORY_POINT_INIT;
        point.ns = now();
        point.bytes = shape_.weights() * shape_.element_bytes + gradient_bytes_ + output_bytes_ + held;
        step_.others.push_back(point);
    }

    void add(const SavedTensor& saved, std::size_t first) {
        sh_activation activation = SH_ACTIVATION_INIT;
        activation.bytes = bytes(saved.width);
        activation.produced_ns = now();
        if (saved.cheap) {
            activation.flags = SH_ACTIVATION_CHEAP;
            activation.recompute_ns =
                static_cast<std::uint64_t>(std::llround(forward_ns(layer_.operations[saved.made_by], shape_, rates_)));
            std::vector<std::uint32_t>& inputs = step_.inputs.emplace_back();
            for (const std::uint32_t input : saved.inputs) inputs.push_back(static_cast<std::uint32_t>(first) + input);
            activation.inputs = inputs.data();
            activation.input_count = inputs.size();
        }
        step_.activations.push_back(activation);
    }

    const Shape& shape_;
    const Rates& rates_;
    const Layer layer_;
    RecordedStep step_;
    double now_ = 0;
    std::uint64_t gradient_bytes_ = 0;
    std::uint64_t output_bytes_ = 0;
    std::vector<std::size_t> firsts_;  // the first activation of each layer whose backward is missing
    std::size_t firsts_again_ = 0;
};

RecordedStep record(const Shape& shape, const Rates& rates, bool checkpointed) {
    Recorder recorder(shape, rates);
    for (std::uint64_t layer = 0; layer < shape.layers; ++layer) recorder.forward(!checkpointed);
    recorder.loss();
    for (std::uint64_t layer = 0; layer < shape.layers; ++layer) recorder.backward(checkpointed);
    return recorder.finish();
}

}  // namespace

sh_training_step RecordedStep::step() const {
    sh_training_step step = SH_TRAINING_STEP_INIT;
    step.activations = activations.data();
    step.activation_count = activations.size();
    step.others = others.data();
    step.other_count = others.size();
    step.forward_end_ns = forward_end_ns;
    step.end_ns = end_ns;
    return step;
}

RecordedStep plain_step(const Shape& shape, const Rates& rates) { return record(shape, rates, false); }

// Nothing is computed again by the planner here, and the lists of inputs would name tensors of the other forward.
RecordedStep checkpointed_step(const Shape& shape, const Rates& rates) {
    RecordedStep step = record(shape, rates, true);
    for (sh_activation& activation : step.activations) {
        activation.flags = 0;
        activation.recompute_ns = activation.input_count = 0;
        activation.inputs = nullptr;
    }
    return step;
}

double rate_for(const Shape& shape, double memory_bytes_per_second, double step_ns) {
    const Layer layer = layer_of(shape);
    double arithmetic = 3 * head_operations(shape);
    double moved = 0;
    for (const Operation& operation : layer.operations) {
        const double all = static_cast<double>(shape.layers * shape.tokens());
        arithmetic += all * operation.operations * (1 + operation.backward_factor);
        moved += all * (operation.moved + operation.backward_moved) * static_cast<double>(shape.element_bytes);
    }
    const double seconds = step_ns / 1e9 - moved / memory_bytes_per_second;
    return seconds > 0 ? arithmetic / seconds : 0;
}

}  // namespace stagehand::cli::training
