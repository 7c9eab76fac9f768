// One library manages the devices of a process: two copies (a system's and one in a wheel, say) would be two arbiters of one budget.
#pragma once

#include "base/status.h"

namespace stagehand::core {

// Claims the process for this copy; SH_ERROR_DUPLICATE_LIBRARY when another copy has. STAGEHAND_ALLOW_DUPLICATE=1 lets it pass.
Status claim_process();

}  // namespace stagehand::core
