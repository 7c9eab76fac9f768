// Reads whatever a user may mean by MODEL: a file, a shard index, a part of a split, a folder that holds one.
#pragma once

#include <string>

#include "model.h"

namespace stagehand::cli::model {

// Reads the headers of the model at `path`:
//   - a safetensors or GGUF file (told apart by content, not by name);
//   - a shard index, by its name's end, ".json": every shard that it names, from its own folder;
//   - one part of a split GGUF model (NAME-00001-of-00003.gguf): all parts;
//   - a folder that holds exactly one of these.
// Only headers are read. Throws ModelError; also when the model holds no bytes.
Model read_model(const std::string& path, const ReadOptions& options = {});

}  // namespace stagehand::cli::model
