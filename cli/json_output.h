// The command's JSON output.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace stagehand::cli {

// Keeps the members in the order of insertion.
using Json = nlohmann::ordered_json;

// The text of the JSON, indented, with a newline at its end. Bytes that are not UTF-8 (a path may hold any bytes) are
// replaced and are no error.
std::string to_text(const Json& json);

// The text on one line.
std::string to_line(const Json& json);

}  // namespace stagehand::cli
