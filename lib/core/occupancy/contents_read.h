// read_contents: reads contents that are away, in host memory or in files.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "core/occupancy/extent.h"

namespace stagehand::core {

// Fails if part of the contents is on the device still. What is not kept is written as 0.
Status read_contents(const Extent& extent, uint64_t offset, uint64_t bytes, void* out);

}  // namespace stagehand::core
