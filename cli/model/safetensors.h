// Reads the header of one safetensors file: 8 bytes of length, that much JSON, then the tensors' bytes.
#pragma once

#include "byte_source.h"
#include "model.h"

namespace stagehand::cli::model {

// Adds the file and its tensors to `model`, which must be discarded if this throws. Checks all promises of Model except
// unique names across files. The format requires that the tensors cover the file to its last byte.
void read_safetensors(ByteSource& source, const ReadOptions& options, Model& model);

}  // namespace stagehand::cli::model
