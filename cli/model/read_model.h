// Reads a model from any path that MODEL may be: a file, a shard index, a part of a split model, or a folder.
#pragma once

#include <span>
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

// For a program, as the libraries that load models choose files: reads the headers of the safetensors files at `paths`
// as one model. Each path is one of these:
//   - a file: this file, also if it is one shard of several;
//   - a shard index, by its name's end, ".json": every shard that it names, from its own folder;
//   - a folder with a shard index: as the index. Other files of the folder are not read;
//   - a folder with a file model.safetensors or diffusion_pytorch_model.safetensors: this file alone;
//   - a folder with the shard index of a variant (NAME.safetensors.index.VARIANT.json): as the index;
//   - any other folder: all *.safetensors files in it.
// Throws ModelError, also if a tensor is in two files, if an index names what is absent, or if a folder holds several
// models. A model without tensors is none.
Model read_weights(std::span<const std::string> paths, const ReadOptions& options = {});

}  // namespace stagehand::cli::model
