// What an engine says of a block, and whether that can be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <stagehand/runtime.h>

#include "base/status.h"

namespace stagehand::core {

// For messages: the place among those that are registered together, and the name.
std::string describe(const sh_block_desc& desc, size_t index);

// Segments are as large as their caller's header says.
const sh_segment& segment_at(const sh_block_desc& desc, uint64_t index);

// Finds what is wrong with any of them.
Status check_blocks(std::span<const sh_block_desc* const> descs, uint64_t page_bytes);

}  // namespace stagehand::core
