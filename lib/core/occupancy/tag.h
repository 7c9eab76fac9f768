// Tag: a name for allocations that leave the device and come back together.
#pragma once

#include <cstdint>

#include <stagehand/occupancy.h>

#include "core/occupancy/extent.h"
#include "core/occupancy/free_space.h"

namespace stagehand::core {

// Small allocations with the same `contents`.
struct SmallAllocations {
    FreeSpace free;
    uint64_t chunk_bytes = 0;
};

struct Tag {
    sh_occupancy_info info = SH_OCCUPANCY_INFO_INIT;  // read by other threads: see Occupancy
    SmallAllocations small[3][2];                     // by Leaving, and whether the contents are constant
};

}  // namespace stagehand::core
