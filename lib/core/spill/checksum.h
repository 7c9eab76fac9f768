// Checksums of spilled bytes, for debugging: they find what was overwritten in host memory or lost on the way.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "core/device/copy_lane.h"

namespace stagehand::core {

uint64_t checksum(const void* data, uint64_t bytes);

// Reads device memory over a lane to the host, and waits for it.
Status checksum_on_device(CopyLane& lane, uint64_t address, uint64_t bytes, uint64_t* out);

}  // namespace stagehand::core
