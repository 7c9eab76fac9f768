// The command's JSON output.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace stagehand::cli {

// Keeps the members in the order of insertion.
using Json = nlohmann::ordered_json;

// The text of the JSON on one line, or indented, with a newline at its end. Bytes that are not UTF-8 (a path may hold
// any bytes) are replaced and are no error.
inline std::string to_line(const Json& json, int indent = -1) {
    return json.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}
inline std::string to_text(const Json& json) { return to_line(json, 2); }

}  // namespace stagehand::cli
