// JSON as the command writes it.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace stagehand::cli {

// Keeps members in the order in which they are given.
using Json = nlohmann::ordered_json;

// Indented, ended by a newline. Text that is not UTF-8 (a path may be anything) is mended, never an error.
std::string to_text(const Json& json);

// The same on one line.
std::string to_line(const Json& json);

}  // namespace stagehand::cli
