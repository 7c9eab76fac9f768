// Tag: a name for allocations that leave the device and come back together.
#pragma once

#include <cstdint>

#include <stagehand/occupancy.h>

#include "core/occupancy/extent.h"
#include "core/occupancy/free_space.h"

namespace stagehand::core {

// Allocations with the same `contents`, flags and format, which may share chunks.
struct Alike {
    uint64_t bytes = 0;  // of all their extents
    FreeSpace free;
};

struct Tag {
    sh_occupancy_info info = sh_sized<sh_occupancy_info>();  // read by other threads: see Occupancy
    // By Leaving or, at the end, for files, by whether the contents are constant, and by their format.
    Alike alike[4][2][SH_FORMAT_F8_E5M2 + 1];
};

}  // namespace stagehand::core
