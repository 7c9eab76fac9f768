// Packed copies of weights in memory, for SH_BLOCK_PACK.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <stagehand/runtime.h>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/host/pinned_memory.h"

namespace stagehand::transfer {

// A segment, and the memory of the library that it lies in. Small copies share memory.
struct PackedCopy {
    sh_segment segment = SH_SEGMENT_INIT;
    std::shared_ptr<PinnedMemory> memory;  // null: the segment is as it was given
    uint64_t pinned_piece = 0;             // as in Segment
};

// What becomes of a segment if packing saves too little, or if the device does not unpack.
enum class Unpackable { copy, leave };

// Copies the segments of pointers that have a format. Returns one entry for each segment. SH_ERROR_OUT_OF_HOST_MEMORY:
// there is no memory for the copies.
Status copy_packed(BackendDevice& device, std::span<const sh_segment> segments, Unpackable unpackable,
                   std::vector<PackedCopy>* out);

}  // namespace stagehand::transfer
