// Files of JSON objects, each on a line.
#pragma once

#include <functional>
#include <string>

#include "json_output.h"

namespace stagehand::cli {

// Calls `visit` for each line that is not blank. `where` names the file and the line. Returns true if the last line is
// no JSON and has no newline, as a process leaves it that was killed, and comes behind others. Throws CommandError if
// another line is no JSON, or if the file cannot be read.
bool read_json_lines(const std::string& path,
                     const std::function<void(const Json& json, const std::string& where)>& visit);

}  // namespace stagehand::cli
