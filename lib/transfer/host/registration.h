// Registers a range of host memory with a device, in pieces if the driver refuses the whole range.
#pragma once

#include <cstdint>

#include "backend/backend_device.h"
#include "base/status.h"

namespace stagehand::transfer {

struct Registration {
    uint64_t piece_bytes = 0;       // every piece but the last has this size
    uint64_t registered_bytes = 0;  // counted from the start
};

// Registers as much of the range as the driver takes, from its start. Returns the error of the driver if it refuses a
// part.
Status register_range(BackendDevice& device, void* memory, uint64_t bytes, Registration* out);
// Returns false if the driver still knows a part of the range. The caller must keep the memory mapped then: if other
// memory came to lie there, the driver would copy the old memory.
bool unregister_range(BackendDevice& device, void* memory, const Registration& registration);

}  // namespace stagehand::transfer
