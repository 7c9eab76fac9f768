// The monitor of a process: answers questions about its devices and runtimes on a Unix socket, if it is enabled.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"

namespace stagehand::telemetry {

// `answer` makes the document that the monitor sends to a client. The monitor calls it on its own thread. It should
// return soon, and it may throw. A `path` of NULL means the default path.
Status monitor_start(const char* path, std::function<std::string()> answer);
Status monitor_stop();
// Starts the monitor if STAGEHAND_MONITOR is set. Called when the first device opens.
void monitor_start_from_environment(std::function<std::string()> answer);

}  // namespace stagehand::telemetry
