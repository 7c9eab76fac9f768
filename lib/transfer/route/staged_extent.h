// StagedExtent: a part of a load that takes the staged route.
#pragma once

#include <cstdint>

#include "transfer/route/command.h"
#include "transfer/source/source.h"

namespace stagehand::transfer {

// A contiguous piece of a load: source bytes and their device address. `waits` are the events that the copy stream must
// wait for before the first byte is written: a range of the load's list of events. Neighbouring extents may share a
// range.
struct StagedExtent {
    const Source* source = nullptr;
    uint64_t source_offset = 0;
    uint64_t device_address = 0;
    uint64_t bytes = 0;
    Waits waits;
};

}  // namespace stagehand::transfer
