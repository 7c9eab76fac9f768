// The names of the parts of a split GGUF model: NAME-00001-of-00003.gguf and so on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gguf.h"

namespace stagehand::cli::model {

// Whether two file names are those of parts of one split.
bool same_split(std::string_view a, std::string_view b);

// The paths of all parts, in order, given one part's path and what it says of the split. Throws when the name
// is none of a part of so many.
std::vector<std::string> split_parts(const std::string& path, const GgufSplit& split);

}  // namespace stagehand::cli::model
