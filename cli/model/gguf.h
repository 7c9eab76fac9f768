// Reads the header of one GGUF file, version 2 or 3, little-endian: counts, metadata, tensor descriptions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "byte_source.h"
#include "model.h"

namespace stagehand::cli::model {

// The metadata of a part of a split model. `count` is 0 or 1 if the file is the whole model.
struct GgufSplit {
    std::uint64_t number = 0;  // from 0
    std::uint64_t count = 0;
};

// Adds the file and its tensors to `model`, which must be discarded if this throws. Checks all promises of Model except
// unique names across files. Large metadata (vocabularies) is skipped without reading it.
GgufSplit read_gguf(ByteSource& source, const ReadOptions& options, Model& model);

// Whether the source begins like a GGUF file.
bool is_gguf(ByteSource& source);

// The names of the parts of a split model: NAME-00001-of-00003.gguf and so on.

// Whether two file names belong to parts of the same split model.
bool same_split(std::string_view a, std::string_view b);

// The paths of all parts in order, from the path of one part and its metadata about the split. Throws if the name does
// not fit the number and the count of the part.
std::vector<std::string> split_parts(const std::string& path, const GgufSplit& split);

}  // namespace stagehand::cli::model
