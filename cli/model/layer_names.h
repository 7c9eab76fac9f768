// Which group each tensor belongs to, by its name.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model.h"

namespace stagehand::cli::model {

// Groups in the order of use; each name is a prefix of its tensors' names and points into the model.
struct TensorGroups {
    std::vector<std::string_view> names;
    std::vector<std::uint32_t> group_of;  // for each tensor, an index into `names`
};

TensorGroups group_tensors(const Model& model);

// The layer that a tensor belongs to: "model.layers.7" of "model.layers.7.mlp.up.weight". Empty if none.
std::string_view layer_of(std::string_view tensor_name);

}  // namespace stagehand::cli::model
