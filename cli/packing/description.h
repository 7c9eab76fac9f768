// The description of a packed file in its own metadata: which tensors are packed, and what they were.
//
//   "__metadata__": { "stagehand.packed": "{\"version\":1,\"tensors\":{NAME:{\"dtype\":\"BF16\",\"shape\":[8,4]}}}" }
//
// A packed tensor is a frame of the codec, and is in the file as U8 under its own name.
#pragma once

#include <map>
#include <string>

#include "packing/tensor_file.h"

namespace stagehand::cli {

std::string description_of(const std::map<std::string, PlainTensor, std::less<>>& packed);

// Throws std::invalid_argument with the reason.
std::map<std::string, PlainTensor, std::less<>> parse_description(const std::string& text);

}  // namespace stagehand::cli
