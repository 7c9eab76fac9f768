/*
 * Pinned host memory: what an engine loads its weights into, so that they are copied to the device without another copy.
 */
#ifndef STAGEHAND_HOST_MEMORY_H
#define STAGEHAND_HOST_MEMORY_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Allocates `bytes` of zeroed host memory, page-aligned, of exactly that size (no rounding to powers of two), in huge pages
 * where the system has them, and pins it for `device`. If the system refuses to pin it, the memory is given all the same,
 * unpinned, a warning is logged and `out_pinned` is 0: sources in it then go through the staging ring.
 *
 * @param out_memory  On success the caller owns it and frees it by sh_host_free() before the device closes; what is left is freed
 *                    with the device, and must not be touched afterwards.
 * @param out_pinned  1: pinned, 0: not. May be NULL.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_ARGUMENT (0 bytes), SH_ERROR_OUT_OF_HOST_MEMORY. Blocks. \since 0.1
 */
SH_API sh_status sh_host_alloc(sh_device *device, uint64_t bytes, void **out_memory, uint32_t *out_pinned);

/**
 * Frees memory of sh_host_alloc(). NULL is allowed. Blocks registered on it must be unregistered before, which is not
 * checked: a copy in flight would read freed memory.
 * @return SH_OK; SH_ERROR_INVALID_HANDLE; SH_ERROR_INVALID_ARGUMENT when `memory` is not from sh_host_alloc(). Blocks. \since 0.1
 */
SH_API sh_status sh_host_free(sh_device *device, void *memory);

#ifdef __cplusplus
}
#endif

#endif
