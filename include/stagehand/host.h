/*
 * Pinned host memory: an engine loads its weights into it, and the device copies them from there without another copy.
 * And streams for engines without streams of their own: on the host backend, in the simulation, and for tools that run
 * on any backend. An engine on a GPU passes the driver's streams.
 */
#ifndef STAGEHAND_HOST_H
#define STAGEHAND_HOST_H

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

/**
 * Creates a stream: a queue whose work runs in order. On the host backend a stream is a thread.
 * @param out_stream The caller owns the stream on success and destroys it with sh_stream_destroy() before the last
 *                   sh_device_close().
 * @retval SH_OK            The stream exists.
 * @retval SH_ERROR_BACKEND The driver failed.
 * @blocks Never.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_stream_create(sh_device* device, sh_stream* out_stream);

/**
 * Waits for the stream's work and destroys the stream. Call sh_stream_forget() first if the current step used the
 * stream. SH_STREAM_HOST and values that are not streams of the device are ignored.
 * @blocks Until the stream's work has ended.
 * \since 0.1
 */
SH_API void sh_stream_destroy(sh_device* device, sh_stream stream);

/**
 * Waits until all work on the stream has ended.
 * @retval SH_OK                     The work has ended.
 * @retval SH_ERROR_INVALID_ARGUMENT `stream` is SH_STREAM_HOST.
 * @retval SH_ERROR_BACKEND          The driver or the work failed.
 * @blocks Until the stream's work has ended.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_stream_synchronize(sh_device* device, sh_stream stream);

/** A function that runs on a stream. The function must not call the library and must not throw. */
typedef void (*sh_stream_fn)(void* user_data);

/**
 * Queues a call of `fn` on the stream.
 * @param fn      May be NULL if only the time matters. The backend `sim` calls the function at once.
 * @param busy_ns The least time, in nanoseconds, for which the call keeps the stream busy. The backend `host` sleeps
 *                for the rest of this time after `fn` has returned. The backend `sim` advances its clock. A negative
 *                value counts as 0.
 * @retval SH_OK                     The call is queued.
 * @retval SH_ERROR_INVALID_ARGUMENT `stream` is SH_STREAM_HOST.
 * @retval SH_ERROR_UNSUPPORTED      The backend cannot run functions on a stream.
 * @retval SH_ERROR_BACKEND          The driver failed.
 * @blocks Never.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_stream_launch(sh_device* device, sh_stream stream, sh_stream_fn fn, void* user_data,
                                                int64_t busy_ns);

#ifdef __cplusplus
}
#endif

#endif
