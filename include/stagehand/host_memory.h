/*
 * Pinned host memory: an engine loads its weights into it, and the device copies them from there without another copy.
 */
#ifndef STAGEHAND_HOST_MEMORY_H
#define STAGEHAND_HOST_MEMORY_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Allocates `bytes` bytes of zeroed host memory and pins them for `device`. The memory begins at a page, has exactly
 * this size (it is not rounded to a power of two), and uses huge pages if the system has them. The call succeeds with
 * unpinned memory, sets `out_pinned` to 0 and logs a warning if the system refuses to pin the memory. Bytes of sources
 * in unpinned memory pass through the staging buffers.
 *
 * @param out_memory The caller owns the memory on success and frees it with sh_host_free() before the last
 *                   sh_device_close(). The closing device frees memory that the caller has not freed.
 * @param out_pinned 1: pinned. 0: not pinned. May be NULL.
 * @retval SH_OK                     The memory is allocated.
 * @retval SH_ERROR_INVALID_ARGUMENT `bytes` is 0.
 * @blocks While the system provides and pins the pages.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_host_alloc(sh_device* device, uint64_t bytes, void** out_memory,
                                             uint32_t* out_pinned);

/**
 * Frees memory of sh_host_alloc(). NULL is allowed. First unregister all blocks with sources in this memory, or destroy
 * their runtimes. The library does not check this, and a copy in flight would otherwise read freed memory.
 * @retval SH_OK                     The memory is freed.
 * @retval SH_ERROR_INVALID_ARGUMENT `memory` is not from sh_host_alloc() of this device.
 * @blocks While the system unpins the pages.
 * \since 0.1
 */
SH_API sh_status sh_host_free(sh_device* device, void* memory);

#ifdef __cplusplus
}
#endif

#endif
