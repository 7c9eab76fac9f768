// A model as the library gets it: read, resolved against a budget, and grouped into blocks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stagehand/stagehand.h>

#include "model/grouping.h"
#include "model/model.h"
#include "options.h"

namespace stagehand::cli {

// A model with its blocks in the order of use. Not copyable, as the model is not.
struct BlockTable {
    model::Model model;
    std::vector<model::Block> blocks;
    std::uint64_t block_bytes = 0;  // W: of all blocks
};

model::Model read_model(const ModelOptions& options);

// The budget in bytes; 0 for the automatic one. Throws CommandError when it comes to nothing.
std::uint64_t budget_bytes(const ModelOptions& options, const model::Model& model);

// Groups for a budget in bytes. In a block the tensors' bytes lie without gaps.
BlockTable group(model::Model model, const ModelOptions& options, std::uint64_t budget);

// The uses of one step: which block, and the nanoseconds of compute that fall to it, by its share of the
// bytes.
struct StepUse {
    std::size_t block = 0;  // index into BlockTable::blocks
    std::uint64_t compute_ns = 0;
};
std::vector<StepUse> step_uses(const BlockTable& table, Order order, double compute_ms);

// `uses` for sh_set_schedule(). A use without compute counts as one nanosecond: zero would mean "measure it".
std::vector<sh_use> schedule(const std::vector<StepUse>& uses, const std::vector<sh_block>& blocks);

// The short name of what was read: the file's or folder's.
std::string model_name(const std::string& path);

// "safetensors, 104 tensors, 86.7 MiB in 14 blocks".
std::string description(const BlockTable& table);

}  // namespace stagehand::cli
