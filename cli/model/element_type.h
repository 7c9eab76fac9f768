// The element types of safetensors and GGUF, and the bytes of a tensor.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace stagehand::cli::model {

// Elements are stored in blocks of `block_elements` elements and `block_bits` bits. Plain types have one element per
// block.
struct ElementType {
    std::string_view name;
    std::uint32_t block_elements = 1;
    std::uint32_t block_bits = 0;
};

// nullptr if safetensors has no type of that name.
const ElementType* safetensors_type(std::string_view name);

// nullptr if GGUF has no type of that number. If GGUF has removed the type, removed_gguf_type() may know its name.
const ElementType* gguf_type(std::uint32_t number);
std::string_view removed_gguf_type(std::uint32_t number);

// The bytes of a tensor, or the problem with its shape. `bytes` is valid exactly if `problem` is empty.
struct TensorSize {
    std::uint64_t bytes = 0;
    std::string_view problem;
};

// `shape` has its outermost dimension first; blocks lie along the last one. An empty shape is one element.
TensorSize tensor_size(const ElementType& type, std::span<const std::uint64_t> shape);

}  // namespace stagehand::cli::model
