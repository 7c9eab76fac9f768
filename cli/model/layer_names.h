// Which group each tensor belongs to, by its name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model.h"

namespace stagehand::cli::model {

// Groups in the order of use; each name is a prefix of its tensors' names and points into the model.
struct TensorGroups {
    std::vector<std::string_view> names;
    std::vector<std::uint32_t> group_of;  // for each tensor, an index into `names`
    std::vector<bool> unordered;          // for each group, whether its tensors match a pattern
};

// A tensor that matches one of the patterns (see matches_glob()), or of which a dotted prefix does, is in a group of
// its own or of its siblings that match: of the part that the last number in its name counts
// ("layers.7.mlp.experts.3"). Tensors that do not match are never in such a group.
TensorGroups group_tensors(const Model& model, const std::vector<std::string>& unordered = {});

// Whether all of `text` matches the pattern: `*` stands for any characters, also none and dots, `?` for one byte.
bool matches_glob(std::string_view pattern, std::string_view text);

// Whether the name is one that mixtures of experts give to an expert's tensors: with a component "experts", as in
// "layers.0.mlp.experts.7.w1", or one that ends in "_exps", as in "blk.0.ffn_up_exps".
bool looks_like_expert(std::string_view tensor_name);

// The name without digits: layers and blocks whose names differ only in numbers are of one family.
std::string family_of(std::string_view name);

// The layer that a tensor belongs to: "model.layers.7" of "model.layers.7.mlp.up.weight". Empty if none.
std::string_view layer_of(std::string_view tensor_name);

}  // namespace stagehand::cli::model
