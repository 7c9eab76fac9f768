// What a control tells of the whole process when somebody asks: every open device and every runtime, each for a moment.
#pragma once

#include <string>

namespace stagehand::api {

// The document of docs/telemetry.md. Takes each runtime's lock for a moment.
std::string process_snapshot();

}  // namespace stagehand::api
