// What a transformer computes and saves in a training step, by its sizes alone: the operations of a layer, their times
// by a rate of arithmetic and a rate of memory, and the tensors that PyTorch's autograd saves for them.
//
// The counts. A layer of s tokens and width h whose elements have two bytes saves 34·s·h bytes with dropout and without
// the scores of the attention: Korthikanti and others, "Reducing Activation Recomputation in Large Transformer Models"
// (arXiv 2205.05198), section 4.1. Its parts there are the inputs of both norms 4, of the queries, keys and values 2,
// of the attention 6 (queries, keys, values), of the projection 2, of the MLP 2, of its activation function 8 and of
// its second matrix 8, and masks of dropout 2. Here there is no dropout, so that 32·s·h remain, which are 16 times the
// bytes of the layer's input. The attention saves no scores (Dao and others, "FlashAttention", arXiv 2205.14135), but
// one fp32 number for each token and head. With a gate (Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202)
// the MLP saves two products of matrices, the activation, the product of both, and its input.
//
// The times. A product with a matrix of p elements takes 2·p operations a token, and twice as many in the backward:
// Kaplan and others, "Scaling Laws for Neural Language Models" (arXiv 2001.08361), section 2.1. The attention of a
// sequence of n tokens takes 4·n·w operations a token for heads of width w together, and half of it if it is causal.
// Its backward takes 2.5 times as many, because it computes the scores again (Dao, "FlashAttention-2", arXiv
// 2307.08691, section 4.1). Other operations take the time in which the memory moves their bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stagehand::cli::training {

struct Shape {
    std::uint64_t layers = 0;
    std::uint64_t hidden = 0;        // width of a layer's input
    std::uint64_t heads = 0;         // of the queries
    std::uint64_t kv_heads = 0;      // of the keys and of the values
    std::uint64_t head_width = 0;    // elements
    std::uint64_t intermediate = 0;  // width inside the MLP
    bool gated = false;              // the MLP has a gate, as SwiGLU has
    std::uint64_t vocabulary = 0;    // 0: neither an embedding nor a loss over words
    std::uint64_t sequence = 0;      // tokens
    std::uint64_t batch = 0;         // sequences
    std::uint64_t element_bytes = 2;
    bool causal = true;

    std::uint64_t tokens() const { return sequence * batch; }
    // Elements of the matrices: of a layer, and of everything.
    std::uint64_t layer_weights() const;
    std::uint64_t weights() const;
};

// A tensor of a layer that the step saves. Widths are elements a token.
struct SavedTensor {
    std::string name;
    double width = 0;                   // in elements of the shape's type
    std::uint32_t made_by = 0;          // the operation; its input if that is `none`
    std::uint32_t released_by = 0;      // the last operation of the forward that reads it
    std::uint32_t first_used_by = 0;    // the operation whose backward reads it first
    std::uint32_t last_used_by = 0;     // the operation whose backward reads it last
    bool cheap = false;                 // it may be computed again, in the time of made_by
    std::vector<std::uint32_t> inputs;  // the saved tensors of the layer that it is computed from then

    static constexpr std::uint32_t none = UINT32_MAX;
};

// An operation of a layer.
struct Operation {
    std::string name;
    double operations = 0;       // of arithmetic a token, in the forward
    double backward_factor = 2;  // the backward takes this many times the operations
    double moved = 0;            // elements a token that memory moves in the forward, if there is no arithmetic
    double backward_moved = 0;   // the same in the backward
    double held = 0;             // elements a token that the forward holds meanwhile, besides what is saved
    double backward_held = 0;    // gradients that the backward holds meanwhile
    std::uint64_t weights = 0;   // elements, whose gradients the backward makes
};

struct Layer {
    std::vector<Operation> operations;  // in the order of the forward
    std::vector<SavedTensor> saved;     // in the order of saving
};

Layer layer_of(const Shape& shape);

// The rates by which times are computed.
struct Rates {
    double operations_per_second = 0;    // of products of matrices
    double memory_bytes_per_second = 0;  // of the device's memory
};

// Nanoseconds of one operation for all tokens.
double forward_ns(const Operation& operation, const Shape& shape, const Rates& rates);
double backward_ns(const Operation& operation, const Shape& shape, const Rates& rates);

// The arithmetic of the last matrix, which gives each word of the vocabulary a number.
double head_operations(const Shape& shape);

}  // namespace stagehand::cli::training
