#include "transformer.h"

namespace stagehand::cli::training {

namespace {

double number(std::uint64_t value) { return static_cast<double>(value); }

// The operations of every layer, by their places.
enum Place : std::uint32_t { norm1, qkv, attention, projection, add1, norm2, expand, activate, gate, reduce, add2 };

Operation product(const char* name, double in, double out, double held, double backward_held) {
    Operation operation;
    operation.name = name;
    operation.operations = 2 * in * out;
    operation.held = held;
    operation.backward_held = backward_held;
    operation.weights = static_cast<std::uint64_t>(in * out);
    return operation;
}

Operation plain(const char* name, double moved, double backward_moved, double backward_held) {
    Operation operation;
    operation.name = name;
    operation.moved = moved;
    operation.backward_moved = backward_moved;
    operation.backward_held = backward_held;
    return operation;
}

}  // namespace

std::uint64_t Shape::layer_weights() const {
    const std::uint64_t queries = heads * head_width;
    const std::uint64_t keys = kv_heads * head_width;
    return hidden * (2 * queries + 2 * keys) + hidden * intermediate * (gated ? 3 : 2);
}

std::uint64_t Shape::weights() const { return layers * layer_weights() + 2 * vocabulary * hidden; }

Layer layer_of(const Shape& shape) {
    const double h = number(shape.hidden);
    const double q = number(shape.heads * shape.head_width);
    const double k = number(shape.kv_heads * shape.head_width);
    const double f = number(shape.intermediate);
    const double opened = shape.gated ? 2 * f : f;  // by the MLP's first matrices
    Layer layer;
    // Gradients that are held meanwhile: that of the layer's output until the residual takes it, and those that go in
    // and out of the operation.
    Operation scores = plain("attention", 0, 0, h + 2 * q + 2 * k);
    scores.operations = 4 * number(shape.sequence) * q * (shape.causal ? 0.5 : 1.0);
    scores.backward_factor = 2.5;
    layer.operations = {
        plain("norm", 2 * h, 3 * h, 3 * h),
        product("queries, keys, values", h, q + 2 * k, 0, h + q + 2 * k + h),
        scores,
        product("projection", q, h, h, h + q),
        plain("addition", 3 * h, 2 * h, 3 * h),
        plain("norm", 2 * h, 3 * h, 3 * h),
        product("MLP, first matrices", h, opened, 0, h + opened + h),
        plain("activation", 2 * f, 3 * f, h + 2 * f + (shape.gated ? f : 0)),
        plain("gate", shape.gated ? 3 * f : 0, shape.gated ? 5 * f : 0, shape.gated ? h + 3 * f : h),
        product("MLP, last matrix", f, h, h, h + f),
        plain("addition", 3 * h, 0, h),
    };
    const std::uint32_t none = SavedTensor::none;
    layer.saved = {
        {"input of the layer", h, none, add1, norm1, norm1, false, {}},
        {"output of the first norm", h, norm1, qkv, qkv, qkv, true, {0}},
        {"queries, keys, values", q + 2 * k, qkv, attention, attention, attention, false, {}},
        // One fp32 number for each head: in elements of the shape's type.
        {"sums of the attention",
         number(shape.heads) * 4 / number(shape.element_bytes),
         attention,
         attention,
         attention,
         attention,
         false,
         {}},
        {"output of the attention", q, attention, projection, projection, attention, false, {}},
        {"input of the second norm", h, add1, add2, norm2, norm2, false, {}},
        {"output of the second norm", h, norm2, expand, expand, expand, true, {5}},
        {"products of the first matrices", opened, expand, activate, activate, activate, false, {}},
        {"output of the activation", f, activate, reduce, reduce, reduce, true, {7}},
    };
    if (shape.gated) {
        layer.saved[7].released_by = layer.saved[8].released_by = gate;
        layer.saved[7].first_used_by = layer.saved[8].first_used_by = layer.saved[8].last_used_by = gate;
        layer.saved.push_back({"product with the gate", f, gate, reduce, reduce, reduce, true, {7, 8}});
    }
    return layer;
}

double forward_ns(const Operation& operation, const Shape& shape, const Rates& rates) {
    const double tokens = number(shape.tokens());
    return 1e9 * tokens *
           (operation.operations / rates.operations_per_second +
            operation.moved * number(shape.element_bytes) / rates.memory_bytes_per_second);
}

double backward_ns(const Operation& operation, const Shape& shape, const Rates& rates) {
    const double tokens = number(shape.tokens());
    return 1e9 * tokens *
           (operation.operations * operation.backward_factor / rates.operations_per_second +
            operation.backward_moved * number(shape.element_bytes) / rates.memory_bytes_per_second);
}

double head_operations(const Shape& shape) {
    return 2 * number(shape.hidden) * number(shape.vocabulary) * number(shape.tokens());
}

}  // namespace stagehand::cli::training
