// The names of the parts of a split GGUF model: NAME-00001-of-00003.gguf and so on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gguf.h"

namespace stagehand::cli::model {

// Whether two file names belong to parts of the same split model.
bool same_split(std::string_view a, std::string_view b);

// The paths of all parts in order, from the path of one part and its metadata about the split. Throws if the name does
// not fit the number and the count of the part.
std::vector<std::string> split_parts(const std::string& path, const GgufSplit& split);

}  // namespace stagehand::cli::model
