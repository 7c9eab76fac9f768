// Anonymous memory in huge pages: maps memory of a given size, and makes its pages present with several threads.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace stagehand::platform {

uint64_t page_size();

// Rounds `bytes` up to a multiple of `unit`, a power of two. Returns false if the result does not fit 64 bits.
bool round_up(uint64_t bytes, uint64_t unit, uint64_t* out);

// Maps zeroed memory of `bytes`, rounded up to pages. Large memory is aligned to huge pages and advised to use them, or
// to use small ones. Returns SH_ERROR_OUT_OF_HOST_MEMORY if the machine or a control group has less memory left. The
// function asks in advance, because the kernel kills the process if promised memory is missing later.
Status map_anonymous(uint64_t bytes, void** out_memory, uint64_t* out_mapped_bytes, bool huge_pages = true);
void unmap_anonymous(void* memory, uint64_t mapped_bytes);

// Makes the pages present, with as many threads as that gains. Other threads must not read the memory meanwhile.
Status touch(void* memory, uint64_t mapped_bytes);
// Makes them present on the calling thread alone.
Status touch_here(void* memory, uint64_t mapped_bytes);

}  // namespace stagehand::platform
