// Reads the header of one GGUF file, version 2 or 3, little-endian: counts, metadata, tensor descriptions.
#pragma once

#include <cstdint>

#include "byte_source.h"
#include "model.h"

namespace stagehand::cli::model {

// What a file says of the split that it is a part of; count is 0 or 1 when it is whole.
struct GgufSplit {
    std::uint64_t number = 0;  // from 0
    std::uint64_t count = 0;
};

// Adds the file and its tensors to `model`, which must be thrown away when this throws. Checks all that Model
// promises but names across files. Large metadata (vocabularies) is skipped, not read.
GgufSplit read_gguf(ByteSource& source, const ReadOptions& options, Model& model);

// Whether the source begins as a GGUF file does.
bool is_gguf(ByteSource& source);

}  // namespace stagehand::cli::model
