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

// Throws when a tensor occurs twice, or a shard's name is absolute, leaves the folder by "..", or is empty.
ShardIndex read_shard_index(ByteSource& source, const ReadOptions& options);

// Throws unless the model, whose file number i is the index's shard number i, holds exactly the tensors that
// the index names, each in the file that it names.
void check_shard_index(const ShardIndex& index, const Model& model);

}  // namespace stagehand::cli::model
