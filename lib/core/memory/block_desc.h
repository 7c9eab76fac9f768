// The check of the block descriptors that an engine passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <stagehand/runtime.h>

#include "base/status.h"

namespace stagehand::core {

// Names the block in messages: its index among the blocks of the call, and its name.
std::string describe(const sh_block_desc& desc, size_t index);

// Reports the first error in the descriptors.
Status check_blocks(std::span<const sh_block_desc> descs, uint64_t page_bytes);

}  // namespace stagehand::core
