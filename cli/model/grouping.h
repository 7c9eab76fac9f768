// Groups the tensors of a model into blocks in the order of use. Reads no file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "model.h"

namespace stagehand::cli::model {

// A run of bytes that is contiguous in a file and in a block.
struct Segment {
    std::uint32_t file = 0;    // index into Model::files
    std::uint64_t offset = 0;  // in the file
    std::uint64_t bytes = 0;
    std::uint64_t block_offset = 0;  // in the block
    // If it is of a packed tensor, which begins at `offset`: its bytes in the file, where the segment begins in its
    // contents, and how many these are. 0 if not.
    std::uint64_t packed_bytes = 0;
    std::uint64_t packed_offset = 0;
    std::uint64_t contents_bytes = 0;
};

struct Block {
    // The dotted prefix that its tensors share ("model.layers.12", "lm_head"). If the group was split, " [2/3]"
    // follows. If neighbours were joined, the name is "FIRST to LAST". Unique.
    std::string name;
    std::uint64_t bytes = 0;  // on the device, alignment gaps included
    std::vector<Segment> segments;
    bool unordered = false;  // its tensors match GroupingOptions::unordered
};

struct GroupingOptions {
    // The largest size of a block. It is rounded down to a multiple of split_bytes, which is the least value.
    std::uint64_t max_block_bytes = std::uint64_t{1} << 62;

    // If there are more groups than this (in a model of very many small parts), neighbours are joined until about so
    // many are left. Splitting may then make more blocks.
    std::size_t max_groups = 16384;

    // Patterns of names (see matches_glob()): tensors that match them are not used in every step, such as experts. They
    // are in blocks of their own, which are marked as unordered and never joined.
    std::vector<std::string> unordered;
};

// In a block, tensors begin at multiples of this.
inline constexpr std::uint64_t tensor_alignment = 256;

// A tensor that is too large for a block is cut at multiples of this from its beginning.
inline constexpr std::uint64_t split_bytes = 4096;

// More blocks than this are refused.
inline constexpr std::uint64_t max_blocks = 10'000'000;

// The model's blocks in the order of a forward pass (use_order.h).
//
// Tensors of one layer are one group. The name of the layer is the tensor's name up to the first component that is a
// number
// ("model.layers.7", "encoder.block.0", "blk.31"). Experts in a layer belong to the layer, unless `unordered` matches
// them. A tensor outside layers is grouped with its siblings by one component below the path that it shares with a
// family of layers ("model.embed_tokens", "bert.embeddings", "lm_head"). A group becomes one block. A group that is
// larger than max_block_bytes is split into parts of about equal size, between tensors if that is possible, otherwise
// inside a tensor. In a block, tensors are in the order of their files, and bytes that are contiguous in both are one
// segment. Every byte of every tensor is in exactly one block. Tensors without bytes are in no block.
//
// Throws std::invalid_argument if max_block_bytes is below split_bytes, and ModelError if there would be more than
// max_blocks blocks. Takes n log n time.
std::vector<Block> group_blocks(const Model& model, const GroupingOptions& options = {});

// A max_block_bytes that suits a budget: a quarter of the budget, so that the ring has room for several blocks, but at
// least 64 KiB if the budget is that large, and at least split_bytes.
std::uint64_t max_block_for_budget(std::uint64_t budget_bytes);

}  // namespace stagehand::cli::model
