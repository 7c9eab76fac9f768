/*
 * Streams for engines that have none of their own: on the host backend and in the simulation, and for tools that run on any
 * backend. Engines on a GPU pass their own streams and do not need this header.
 */
#ifndef STAGEHAND_STREAM_H
#define STAGEHAND_STREAM_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Makes a stream: an ordered queue of work (on the host backend, a thread). The caller owns it and destroys it by
 * sh_stream_destroy(), before it closes the device.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_OUT_OF_HOST_MEMORY, SH_ERROR_BACKEND. \since 0.1
 */
SH_API sh_status sh_stream_create(sh_device *device, sh_stream *out_stream);

/**
 * Waits for the stream's work and destroys it. Inside a step that used it, sh_stream_forget() comes before. SH_STREAM_HOST, and
 * what is not a stream of the device, are ignored. Blocks. \since 0.1
 */
SH_API void sh_stream_destroy(sh_device *device, sh_stream stream);

/**
 * Waits until all work that was queued has finished.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_ARGUMENT (SH_STREAM_HOST), SH_ERROR_BACKEND. Blocks. \since 0.1
 */
SH_API sh_status sh_stream_synchronize(sh_device *device, sh_stream stream);

/** Runs in a stream. It must not call the library, and must not throw. */
typedef void (*sh_stream_fn)(void *user_data);

/**
 * Queues `fn` on the stream. `busy_ns` is the least time for which the stream counts as busy with it: the host backend
 * sleeps what `fn` leaves of it, the simulation advances its clock. A negative value is no time at all.
 * `fn` may be NULL when only the time matters; the simulation calls it at once.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_ARGUMENT (SH_STREAM_HOST), SH_ERROR_UNSUPPORTED, SH_ERROR_BACKEND. \since 0.1
 */
SH_API sh_status sh_stream_launch(sh_device *device, sh_stream stream, sh_stream_fn fn, void *user_data, int64_t busy_ns);

#ifdef __cplusplus
}
#endif

#endif
