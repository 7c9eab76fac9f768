// Chooses the route of a segment. Only this file tells the kinds of sources apart for that.
#pragma once

#include <span>

#include <stagehand/runtime.h>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/host/packed_copy.h"
#include "transfer/source/segment.h"

namespace stagehand::transfer {

struct RouteOptions {
    bool pin = false;                  // the memory of a pointer
    const PackedCopy* copy = nullptr;  // that the segment is in, if it is a copy
    uint64_t staged_bytes = 0;         // the largest chunk of a packed tensor that workers can stage
};

// Opens the source of a segment and chooses its route. `out_pin_failure` says why the memory could not be pinned. The
// caller closes the segment by close_segment(), after a failure too if the source was opened.
Status open_segment(BackendDevice& device, const sh_segment& from, const RouteOptions& options, Segment* out,
                    Status* out_pin_failure);
void close_segment(BackendDevice& device, Segment* segment);

// Marks the segments whose pinned memory continues the memory of the segment before. The tensors of a file lie like
// that, and one copy brings them. `segments` is sorted by offset.
Status join_segments(BackendDevice& device, std::span<Segment> segments);

}  // namespace stagehand::transfer
