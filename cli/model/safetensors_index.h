// Reads a shard index (*.safetensors.index.json): which file holds which tensor.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "arena.h"
#include "byte_source.h"
#include "model.h"

namespace stagehand::cli::model {

struct ShardIndex {
    struct Entry {
        std::string_view tensor;  // owned by `arena`
        std::uint32_t shard = 0;  // index into `shards`
    };

    std::string path;
    std::vector<std::string> shards;  // in order; paths relative to the index's folder that stay inside it
    std::vector<Entry> entries;       // of different tensors
    Arena arena;
};

// Throws if a tensor occurs twice, or if the name of a shard is absolute, leaves the folder by "..", or is empty.
ShardIndex read_shard_index(ByteSource& source, const ReadOptions& options);

// The index at `path`.
ShardIndex read_shard_index(const std::string& path, const ReadOptions& options);

// Adds the shards that the index names, in its folder, to `model`, which must be discarded if this throws. It throws if
// a shard is absent, or if the shards do not hold exactly the tensors of the index, each where the index says.
void read_shards(const ShardIndex& index, const ReadOptions& options, Model& model);

// Checks that the tensors of the model from `first_tensor` on are exactly those of the index, each in the file that the
// index names. The shards are the files of the model from `first_file` on. Throws otherwise.
void check_shard_index(const ShardIndex& index, const Model& model, std::size_t first_file = 0,
                       std::size_t first_tensor = 0);

}  // namespace stagehand::cli::model
