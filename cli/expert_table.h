// The experts of a model's mixtures, apart from what each step uses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "block_table.h"
#include "model/grouping.h"
#include "model/model.h"
#include "options.h"

namespace stagehand::cli {

// The experts of one layer. All have the same size.
struct ExpertLayer {
    std::uint64_t number = 0;   // in the names of its tensors
    std::string name;           // "model.layers.3"
    std::size_t first = 0;      // its expert 0 in ExpertTable::blocks
    std::uint32_t experts = 0;  // that it has
    std::uint64_t bytes = 0;    // of each
};

struct ExpertTable {
    BlockTable rest;                   // what each step uses
    std::vector<ExpertLayer> layers;   // by number
    std::vector<model::Block> blocks;  // one for each expert, layer by layer
    std::uint64_t bytes = 0;           // of all experts
};

// Reads the model and takes its experts out. They are tensors that hold all experts of a layer, of which the first
// dimension is the number of experts ("experts.gate_up_proj", "ffn_up_exps"), or tensors of one expert each
// ("experts.7.w1"). `budget` as for group(). Throws CommandError if the model has no experts, or nothing else, and
// ModelError if those of a layer differ.
ExpertTable read_experts(const ModelOptions& options, std::uint64_t budget);

}  // namespace stagehand::cli
