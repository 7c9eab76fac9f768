// The spillers of the process by their handles.
#pragma once

#include "api/guard.h"
#include "core/spill/spiller.h"

namespace stagehand::api {

// The spiller of a handle, locked.
struct LockedSpiller {
    core::Spiller* spiller = nullptr;
    core::Lock lock;
};
Status find_spiller(sh_spiller* handle, LockedSpiller* out);

}  // namespace stagehand::api
