// Opens the sources of a block, so that they can be read as long as the block is registered.
#pragma once

#include <cstddef>

#include <stagehand/runtime.h>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/memory/block.h"

namespace stagehand::core {

// Opens the segments of a block's descriptor, which is number `index` of a call. `offset` is the block's offset in its
// unit. `copies` are those of its segments, or none. `staged_bytes` is the largest chunk of a packed tensor that
// workers can stage. After a failure, close_sources() closes what was opened.
Status open_sources(BackendDevice& device, const sh_block_desc& desc, const BlockCopies& copies, size_t index,
                    uint64_t offset, uint64_t staged_bytes, BlockDetail* out);
void close_sources(BackendDevice& device, BlockDetail& detail);

// The memory that a write-back of the segment goes to.
const transfer::Segment& written_segment(const BlockDetail& detail, const transfer::Segment& segment);
// If the block's plain memory has news, loads read it from now on, and the packed copies are spent.
void read_news(BackendDevice& device, BlockDetail& detail) noexcept;
void close_spent(BackendDevice& device, BlockDetail& detail) noexcept;

}  // namespace stagehand::core
