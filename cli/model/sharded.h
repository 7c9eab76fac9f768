// The shards of a model: the files that its index names, in the folder of the index.
#pragma once

#include <string>

#include "model.h"
#include "safetensors_index.h"

namespace stagehand::cli::model {

// The index at `path`.
ShardIndex read_shard_index(const std::string& path, const ReadOptions& options);

// Adds the shards that the index names to `model`, which must be discarded if this throws. It throws if a shard is
// absent, or if the shards do not hold exactly the tensors of the index, each where the index says.
void read_shards(const ShardIndex& index, const ReadOptions& options, Model& model);

}  // namespace stagehand::cli::model
