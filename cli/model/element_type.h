// The element types of safetensors and GGUF, and how many bytes a shape of one takes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace stagehand::cli::model {

// Elements come in blocks of `block_elements`, each `block_bits` long; plain types have one element a block.
struct ElementType {
    std::string_view name;
    std::uint32_t block_elements = 1;
    std::uint32_t block_bits = 0;
};

// nullptr when safetensors has no type of that name.
const ElementType* safetensors_type(std::string_view name);

// nullptr when GGUF has no type of that number, or none any more: then removed_gguf_type() may know its name.
const ElementType* gguf_type(std::uint32_t number);
std::string_view removed_gguf_type(std::uint32_t number);

// The bytes of a tensor, or why it has none: `problem` is empty exactly if `bytes` counts.
struct TensorSize {
    std::uint64_t bytes = 0;
    std::string_view problem;
};

// `shape` has its outermost dimension first; blocks lie along the last one. An empty shape is one element.
TensorSize tensor_size(const ElementType& type, std::span<const std::uint64_t> shape);

}  // namespace stagehand::cli::model
