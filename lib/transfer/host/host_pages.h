// The pages of the library's host memory: anonymous memory of the system, or memory of the engine's allocator.
#pragma once

#include <cstdint>

#include "backend/backend_device.h"
#include "base/status.h"

namespace stagehand::transfer {

// Memory of at least `bytes`: zeroed, or with any contents if it is the engine's. SH_ERROR_OUT_OF_HOST_MEMORY: the
// system has no memory, a limit of the cgroup would be passed, or the engine's allocator gives none. SH_ERROR_CALLBACK:
// that allocator gave memory that does not begin at a page.
Status take_host_pages(BackendDevice& device, uint64_t bytes, void** out_memory, uint64_t* out_bytes);
// Whether they must not be freed, because stray copies may use memory that was taken at this mark. The log tells.
bool must_stay(uint64_t mark, uint64_t bytes) noexcept;
// Takes what take_host_pages() gave.
void give_host_pages(BackendDevice& device, void* memory, uint64_t bytes);

}  // namespace stagehand::transfer
