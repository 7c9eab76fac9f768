// Reads a model from any path that MODEL may be: a file, a shard index, a part of a split model, or a folder.
#pragma once

#include <string>

#include "model.h"

namespace stagehand::cli::model {

// Reads the headers of the model at `path`:
//   - a safetensors or GGUF file (told apart by content, not by name);
//   - a shard index, by its name's end, ".json": every shard that it names, from its own folder;
//   - one part of a split GGUF model (NAME-00001-of-00003.gguf): all parts;
//   - a folder that holds exactly one of these.
// Reads only headers. Throws ModelError, also if the model holds no bytes.
Model read_model(const std::string& path, const ReadOptions& options = {});

}  // namespace stagehand::cli::model
