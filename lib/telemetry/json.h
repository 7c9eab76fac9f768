// JSON as the library writes it: members in the order in which they are given, on one line.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace stagehand::telemetry {

using Json = nlohmann::ordered_json;

// Without a newline, also not within. Names come from engines and need not be UTF-8: what is not is replaced.
inline std::string json_line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace stagehand::telemetry
