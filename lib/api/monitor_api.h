// The monitor as the interface starts it: with what it tells of this process.
#pragma once

namespace stagehand::api {

// Starts the monitor when STAGEHAND_MONITOR asks for it; called when the first device opens.
void monitor_start_from_environment();

}  // namespace stagehand::api
