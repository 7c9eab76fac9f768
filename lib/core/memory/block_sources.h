// Where a block's bytes come from, opened so that they can be read as long as the block is registered.
#pragma once

#include <cstddef>

#include <stagehand/runtime.h>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/memory/block.h"

namespace stagehand::core {

// Makes the block's detail from its descriptor, the index-th of a call. `offset`: of the block in its unit. What is open after a failure
// is for close_sources().
Status open_sources(BackendDevice& device, const sh_block_desc& desc, size_t index, uint64_t offset, Block& block);
void close_sources(BackendDevice& device, BlockDetail& detail);

}  // namespace stagehand::core
