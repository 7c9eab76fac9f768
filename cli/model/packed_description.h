// The description of a packed file in its own metadata: which tensors are packed, and what they were.
//
//   "__metadata__": { "stagehand.packed": "{\"version\":1,\"tensors\":{NAME:{\"dtype\":\"BF16\",\"shape\":[8,4]}}}" }
//
// A packed tensor is a frame of the codec, and is in the file as U8 under its own name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "byte_source.h"

namespace stagehand::cli::model {

// The metadata of a file that `stagehand pack` has written has this key.
inline constexpr std::string_view packed_key = "stagehand.packed";

// What a packed tensor was.
struct PlainTensor {
    std::string dtype;
    std::vector<std::uint64_t> shape;
};

using PackedTensors = std::map<std::string, PlainTensor, std::less<>>;  // by name

std::string description_of(const PackedTensors& packed);

// Throws std::invalid_argument with the reason.
PackedTensors parse_description(const std::string& text);

struct Model;

// Makes the tensors of the file from `first` on what they were before they were packed, by the description in its
// metadata and by the headers of the packed tensors, which must agree. Throws ModelError otherwise.
void apply_description(const std::string& text, ByteSource& source, std::size_t first, Model& model);

}  // namespace stagehand::cli::model
