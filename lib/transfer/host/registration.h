// Registering a range of host memory with a device, in pieces where the driver does not take it in one.
#pragma once

#include <cstdint>

#include "backend/backend_device.h"
#include "base/status.h"

namespace stagehand::transfer {

struct Registration {
    uint64_t piece_bytes = 0;       // every piece but the last has this size
    uint64_t registered_bytes = 0;  // from the start
};

// Registers as much of the range as the driver takes, from its start. The refusal, if any, comes back as the
// status.
Status register_range(BackendDevice& device, void* memory, uint64_t bytes, Registration* out);
// False: the driver still knows some of it. Other memory must not come to lie there: the driver would copy what was there before.
bool unregister_range(BackendDevice& device, void* memory, const Registration& registration);

}  // namespace stagehand::transfer
