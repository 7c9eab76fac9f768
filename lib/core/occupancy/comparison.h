// Finds the pages whose contents host memory still has from the pause before, so that they need no copy.
#pragma once

#include <cstdint>
#include <span>

#include "backend/backend_device.h"
#include "core/occupancy/extent.h"

namespace stagehand::core {

// Says for each page of extents that are staged whether it is copied. Nothing else uses the memory. With `all` every
// page is copied. A device that cannot hash, or fails to, has every page copied that was not promised to be constant:
// the log has the reason. Returns the bytes that are not copied because host memory has them.
uint64_t choose_copies(BackendDevice& device, std::span<Extent* const> extents, bool all, sh_stream stream) noexcept;

}  // namespace stagehand::core
