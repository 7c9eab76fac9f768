// Finds the plugin for HTTP.
#pragma once

#include "base/status.h"
#include "control/transport.h"

namespace stagehand::control {

// Looks where backends are looked for. The plugin is loaded once, and stays for the life of the process. Returns
// SH_ERROR_BACKEND_LOAD with each path that was tried if there is none. Thread-safe.
Status find_transport(const Transport** out);

}  // namespace stagehand::control
