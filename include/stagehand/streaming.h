/*
 * Streaming: the calls of an engine's step. A step is one pass over the model (or forward and backward):
 *
 *     sh_step_begin(rt);
 *     for each block:  sh_acquire(rt, block, stream, 0, &view);  launch(stream, view.address);  sh_release(rt, block, stream);
 *     sh_step_end(rt);
 */
#ifndef STAGEHAND_STREAMING_H
#define STAGEHAND_STREAMING_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SH_VIEW_HIT = 1,           /**< No load had to be begun for it: its bytes were there, or on their way. */
    SH_VIEW_FIXED_ADDRESS = 2, /**< The address never changes while the block is registered. */
    SH_VIEW_REMAPPED = 4,      /**< Its pages were mapped for this acquire (blocks outside the order). */
    SH_VIEW_WAITED = 8         /**< The calling thread waited for its bytes. */
};

/** A block's device address, valid from acquire to release. */
typedef struct sh_view {
    uint32_t struct_size;
    uint32_t flags;   /**< SH_VIEW_* */
    sh_block block;
    void *address;    /**< Device address of the block's first byte. */
    uint64_t bytes;
    uint64_t serial;  /**< Grows each time any of the contents are loaded: unchanged serial, unchanged device contents. */
} sh_view;

#define SH_VIEW_INIT {sizeof(sh_view), 0, 0, 0, 0, 0}
SH_API void sh_view_init(sh_view *view);

enum {
    /** Return SH_NOT_READY instead of waiting on the host for bytes. The load goes on: ask again. Waits for memory are not spared: the
        first plan, what is dirty where the bytes go, and blocks outside the order that make room while streams still use them. */
    SH_ACQUIRE_NO_WAIT = 1
};

/**
 * Begins a step. Plans if there is none or it has to change (the first step, another budget, other blocks); if views are held,
 * the old plan stays until a step begins with none. On an error no step is under way.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_STATE (a step is under way), SH_ERROR_BUDGET, SH_ERROR_BUSY (others still hold
 *         its share, because they are in a step or hold views: try again after it; or because a graph holds their plan: until it is destroyed, or
 *         sh_plan() was called for them with SH_PLAN_DROP_GRAPHS), SH_ERROR_OUT_OF_DEVICE_MEMORY, SH_ERROR_BACKEND, SH_ERROR_CANCELLED,
 *         SH_ERROR_RUNTIME_LOST; or the error of asynchronous work. Blocks when it plans. \since 0.1
 */
SH_API sh_status sh_step_begin(sh_runtime *runtime);

/**
 * Ends a step: the order that was seen is compared with the plan's. Views may stay held. Loads for the next step go on.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_STATE (no step is under way); or SH_ERROR_IO (sh_telemetry_open()), the
 *         driver's error for a stream that was used (SH_ERROR_INVALID_HANDLE among them, for a stream that is gone), or the error of
 *         asynchronous work, in which case the step has ended all the same. \since 0.1
 */
SH_API sh_status sh_step_end(sh_runtime *runtime);

/**
 * Makes a block's bytes usable on `stream`: work queued there after this call sees them. With pinned sources the calling thread
 * does not wait for bytes; with others it waits until the last piece of the load has been issued (counted as a stall). With
 * SH_STREAM_HOST it returns when the bytes are there. Whatever the sources, it waits while memory has to be made ready: when it
 * plans (outside a step, or without a plan), when dirty contents are in the way, and when a block outside the order takes the memory
 * of another that streams still use. The order of acquires is free; it may be called outside a step. A block may be held
 * several times, on several streams: each acquire needs one release.
 * Another thread may release views while this waits; it never waits for a view to be released.
 *
 * @param stream   The stream that will use the view, and is given to sh_release(). Not every backend checks it, nor at once.
 * @param flags    0 or SH_ACQUIRE_NO_WAIT.
 * @param out_view On success valid until the matching sh_release().
 * @return SH_OK; SH_NOT_READY; SH_ERROR_INVALID_HANDLE; SH_ERROR_INVALID_STRUCT; SH_ERROR_INVALID_ARGUMENT (flags);
 *         SH_ERROR_HELD (its pages are held by a view, and the text names the block: see sh_runtime_options.max_held and
 *         sh_invalidate_blocks()); SH_ERROR_SOURCE, SH_ERROR_CALLBACK, SH_ERROR_BACKEND (the load failed; it is tried anew by the
 *         next acquire); SH_ERROR_BUSY (its source is being updated; a graph has been entered and the block streams; or as sh_step_begin(), where it
 *         plans); SH_ERROR_UNSUPPORTED (in a capture: its source is not pinned); SH_ERROR_INVALID_STATE (the stream captures, and
 *         the runtime does not); SH_ERROR_BUDGET; SH_ERROR_OUT_OF_DEVICE_MEMORY; SH_ERROR_CANCELLED; SH_ERROR_RUNTIME_LOST. Blocks as said. \since 0.1
 */
SH_API sh_status sh_acquire(sh_runtime *runtime, sh_block block, sh_stream stream, uint32_t flags, sh_view *out_view);

/**
 * Acquires a set at once, all or none: either every view is held, or no one is. The loads of all are begun before any is
 * waited for. A block may occur more than once.
 * @param out_views `count` views, each with its struct_size set; in the order of `blocks`.
 * @return As sh_acquire(). SH_NOT_READY and errors leave nothing held; loads that were begun go on. Blocks likewise. \since 0.1
 */
SH_API sh_status sh_acquire_many(sh_runtime *runtime, const sh_block *blocks, uint64_t count, sh_stream stream, uint32_t flags,
                                 sh_view *out_views);

/**
 * Ends one acquire. Work that was queued on `stream` before this call may still use the view; with SH_STREAM_HOST the caller has
 * finished with it. Begins the loads that this makes room for. Any thread may call it. `stream` must be a stream of the device, the
 * one on which the view was used: a runtime that cannot tell when the work on it ends is lost.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE (also for a stream that the device does not know: the view stays held),
 *         SH_ERROR_INVALID_STATE (not held; or the stream captures, and the runtime does not: the view stays held),
 *         SH_ERROR_BACKEND (the view is released all the same); or the error of asynchronous work, likewise; SH_ERROR_RUNTIME_LOST. Waits only
 *         for a stream that cannot be noted
 *         otherwise: after an error of the driver, or when a runtime uses more than 64 streams. \since 0.1
 */
SH_API sh_status sh_release(sh_runtime *runtime, sh_block block, sh_stream stream);

/** sh_release() for a set; goes on after an error and returns the first. Returns as sh_release(). \since 0.1 */
SH_API sh_status sh_release_many(sh_runtime *runtime, const sh_block *blocks, uint64_t count, sh_stream stream);

/**
 * Begins to load blocks that will be used soon, where their memory can be had without taking it from views or from what the
 * order needs first; a hint, which may do nothing, and does nothing before there is a plan. For blocks outside the order. A load that
 * fails is told by the acquire of its block.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_RUNTIME_LOST. May wait for memory as sh_acquire() does. \since 0.1
 */
SH_API sh_status sh_prefetch(sh_runtime *runtime, const sh_block *blocks, uint64_t count);

/**
 * Copies `bytes` bytes of a block that is held (on any stream), from `offset` on, to host memory, after the work queued so far on
 * `stream`; for verification and debugging. On an error `buffer` is undefined.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_STATE (not held; or the stream captures), SH_ERROR_INVALID_ARGUMENT (range),
 *         SH_ERROR_BUSY (in a capture), SH_ERROR_BACKEND. Blocks. \since 0.1
 */
SH_API sh_status sh_read_block(sh_runtime *runtime, sh_block block, sh_stream stream, uint64_t offset, void *buffer, uint64_t bytes);

/**
 * Forgets a stream before it is destroyed inside a step: waits for the work queued on it before its last release. Streams that the
 * runtime has not seen are ignored.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_BACKEND. Blocks. \since 0.1
 */
SH_API sh_status sh_stream_forget(sh_runtime *runtime, sh_stream stream);

#ifdef __cplusplus
}
#endif

#endif
