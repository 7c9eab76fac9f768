// A model in the form that the library takes: grouped into blocks for a budget.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stagehand/stagehand.h>

#include "model/grouping.h"
#include "model/model.h"
#include "options.h"

namespace stagehand::cli {

// A model with its blocks in the order of use. Not copyable, because the model is not.
struct BlockTable {
    model::Model model;
    std::vector<model::Block> blocks;
    std::uint64_t block_bytes = 0;   // W: of all blocks
    std::uint64_t packed_bytes = 0;  // what packing takes them to; block_bytes if no tensor is packed
    // The blocks that are not used in every step; they have no place in the order.
    std::size_t unordered_blocks = 0;
    std::uint64_t unordered_bytes = 0;

    bool is_packed() const { return packed_bytes < block_bytes; }
};

model::Model read_model(const ModelOptions& options);

// The budget in bytes; 0 for the automatic budget. Throws CommandError if the budget is 0 bytes.
std::uint64_t budget_bytes(const ModelOptions& options, const model::Model& model);

// Closes the gaps that the grouping leaves to align tensors. Nothing computes with these blocks. Without gaps the bytes
// of a block are the bytes of the file, so that plans, copies and bounds count the same bytes.
void close_gaps(model::Block& block);

// Groups the model for a budget in bytes. The bytes of a block's tensors follow each other without gaps. Throws
// CommandError if options.unordered matches no tensor or all tensors.
BlockTable group(model::Model model, const ModelOptions& options, std::uint64_t budget);

// How many tensors have names that experts of a mixture usually have, and the name of the first.
struct ExpertNames {
    std::size_t count = 0;
    std::string first;
};
ExpertNames expert_names(const model::Model& model);

// A note for people if the model seems to have experts and no block is unordered; empty otherwise.
std::string experts_note(const BlockTable& table);

// The uses of one step: the block, and the nanoseconds of compute that the step spends on it. The blocks share the
// compute in proportion to their bytes. Unordered blocks have no use.
struct StepUse {
    std::size_t block = 0;  // index into BlockTable::blocks
    std::uint64_t compute_ns = 0;
};
std::vector<StepUse> step_uses(const BlockTable& table, Order order, double compute_ms);

// `uses` for sh_set_schedule(). A use without compute gets one nanosecond, because zero asks the library to measure it.
std::vector<sh_use> schedule(const std::vector<StepUse>& uses, const std::vector<sh_block>& blocks);

// The name of the model's file or folder, without the path.
std::string model_name(const std::string& path);

// "safetensors, 104 tensors, 86.7 MiB in 14 blocks".
std::string description(const BlockTable& table);

}  // namespace stagehand::cli
