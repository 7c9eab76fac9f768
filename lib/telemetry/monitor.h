// The monitor of a process: answers questions about its devices and runtimes on a Unix socket, while it is asked to.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"

namespace stagehand::telemetry {

// `answer` makes the document that is sent to whoever asks. It is called on the monitor's thread, and should not take long; it may throw.
// `path` NULL: the default.
Status monitor_start(const char* path, std::function<std::string()> answer);
Status monitor_stop();
// Starts it when STAGEHAND_MONITOR asks for it; called when the first device opens.
void monitor_start_from_environment(std::function<std::string()> answer);

}  // namespace stagehand::telemetry
