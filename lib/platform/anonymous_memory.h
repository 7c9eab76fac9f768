// Anonymous memory in huge pages: mapped to an exact size, and brought in by several threads.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace stagehand::platform {

uint64_t page_size();

// `bytes` rounded up to a multiple of `unit`, a power of two; false when that does not fit 64 bits.
bool round_up(uint64_t bytes, uint64_t unit, uint64_t* out);

// Maps zeroed memory of `bytes` rounded up to pages; where it is large, so placed that huge pages fit and
// advised to use them. SH_ERROR_OUT_OF_HOST_MEMORY, also when the machine or a control group has not that
// much left: asked for now, because memory that is promised and then not there kills the process.
Status map_anonymous(uint64_t bytes, void** out_memory, uint64_t* out_mapped_bytes);
void unmap_anonymous(void* memory, uint64_t mapped_bytes);

// Makes the pages present, with as many threads as that gains. The memory is not read by others meanwhile.
Status touch(void* memory, uint64_t mapped_bytes);

}  // namespace stagehand::platform
