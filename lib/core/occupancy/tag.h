// Tag: a name for allocations that leave the device and come back together.
#pragma once

#include <cstdint>

#include <stagehand/occupancy.h>

#include "core/occupancy/extent.h"
#include "core/occupancy/free_space.h"

namespace stagehand::core {

// Small allocations with the same `contents`, flags and format.
struct SmallAllocations {
    FreeSpace free;
    uint64_t chunk_bytes = 0;
};

struct Tag {
    sh_occupancy_info info = SH_OCCUPANCY_INFO_INIT;  // read by other threads: see Occupancy
    // By Leaving or, at the end, for files, by whether the contents are constant, and by their format.
    SmallAllocations small[4][2][SH_FORMAT_F8_E5M2 + 1];
};

}  // namespace stagehand::core
