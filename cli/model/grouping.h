// Groups a model's tensors into blocks: what is streamed, and in which order it is used. Pure: reads no file.
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
};

struct Block {
    // The dotted prefix that its tensors share ("model.layers.12", "lm_head"); with " [2/3]" behind it where
    // that was split, or "FIRST to LAST" where neighbours were joined. Unique.
    std::string name;
    std::uint64_t bytes = 0;  // on the device, alignment gaps included
    std::vector<Segment> segments;
};

struct GroupingOptions {
    // No block is larger. Rounded down to a multiple of split_bytes, which is the least.
    std::uint64_t max_block_bytes = std::uint64_t{1} << 62;

    // More groups than this (a model of very many small parts) are joined with their neighbours until about
    // so many are left. Splitting may still make more.
    std::size_t max_groups = 16384;
};

// Tensors begin at multiples of this in a block.
inline constexpr std::uint64_t tensor_alignment = 256;

// A tensor too large for a block is cut at multiples of this from its beginning.
inline constexpr std::uint64_t split_bytes = 4096;

// More blocks than this are refused.
inline constexpr std::uint64_t max_blocks = 10'000'000;

// The model's blocks in the order of a forward pass (use_order.h).
//
// Tensors of one layer are one group: the first component of a dotted name that is a number, with all before
// it, names the layer ("model.layers.7", "encoder.block.0", "blk.31"; experts and the like inside a layer
// belong to it). A tensor outside any layer is grouped with its siblings by one component below the path that
// it shares with a family of layers ("model.embed_tokens", "bert.embeddings", "lm_head"). A group becomes one
// block; a larger one than max_block_bytes is split into parts of about equal size, between tensors where
// that is possible, else inside a tensor. Inside a block tensors lie in the order of their files, and what is
// contiguous in both is one segment. Every byte of every tensor is in exactly one block; tensors without
// bytes are in none.
//
// Throws std::invalid_argument when max_block_bytes is below split_bytes, and ModelError when there would be
// more than max_blocks blocks. Takes n log n time.
std::vector<Block> group_blocks(const Model& model, const GroupingOptions& options = {});

// A max_block_bytes with which a budget streams well: a quarter of it, so that a ring has room for several
// blocks; but at least 64 KiB, if the budget has so much, and at least split_bytes.
std::uint64_t max_block_for_budget(std::uint64_t budget_bytes);

}  // namespace stagehand::cli::model
