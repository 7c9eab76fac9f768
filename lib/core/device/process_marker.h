// The claim that one copy of the library manages the devices of a process. Two copies, such as one of the system and
// one in a wheel, would be two arbiters of one budget.
#pragma once

#include "base/status.h"

namespace stagehand::core {

// Claims the process for this copy. Returns SH_ERROR_DUPLICATE_LIBRARY if another copy has claimed it.
// STAGEHAND_ALLOW_DUPLICATE=1 allows a second copy.
Status claim_process();

}  // namespace stagehand::core
