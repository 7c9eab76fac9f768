// The control as the environment starts it.
#pragma once

namespace stagehand::api {

// Starts a control without a device where STAGEHAND_MONITOR says; called when the first device opens.
void control_start_from_environment();

}  // namespace stagehand::api
