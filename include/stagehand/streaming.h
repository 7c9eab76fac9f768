/*
 * Streaming: the calls of an engine's step. A step is one pass over the model, or a forward and a backward pass:
 *
 *     sh_step_begin(rt, "decode");  (or NULL, if steps have no kinds)
 *     for each block:
 *         sh_acquire(rt, block, stream, 0, &view);
 *         launch(stream, view.address);
 *         sh_release(rt, block, stream);
 *     sh_step_end(rt);
 */
#ifndef STAGEHAND_STREAMING_H
#define STAGEHAND_STREAMING_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SH_VIEW_HIT = 1,           /**< The acquire began no load: the bytes were there, or on their way. */
    SH_VIEW_FIXED_ADDRESS = 2, /**< The address stays the same while the block is registered. */
    SH_VIEW_REMAPPED = 4,      /**< The acquire mapped pages for a block outside the order. */
    SH_VIEW_WAITED = 8         /**< The calling thread waited for the bytes. */
};

/** A block's device memory. The view is valid from sh_acquire() until the matching sh_release(). */
typedef struct sh_view {
    uint32_t struct_size;
    uint32_t flags; /**< SH_VIEW_* */
    sh_block block;
    void* address;   /**< Device address of the block's first byte. */
    uint64_t bytes;  /**< Size of the block. */
    uint64_t serial; /**< Grows with each load of any of the contents. The same serial means the same contents. */
} sh_view;

enum {
    /** Return SH_NOT_READY instead of making the calling thread wait for bytes. The load goes on, so ask again later.
        The call may still wait for memory: for the first plan, for dirty contents that are in the way, and for streams
        that use the memory which a block outside the order takes. */
    SH_ACQUIRE_NO_WAIT = 1
};

/**
 * Begins a step. The runtime plans if it has no plan, or if the plan has to change (other blocks, another budget,
 * another order, other blocks that the engine changes). The old plan stays until a step begins without held views. No
 * step is under way after an error.
 *
 * Steps may be told apart by kind: "prefill" or "decode", for example. Steps of one kind use the same blocks in the
 * same order, as a rule, and compute about as long. Kinds that alternate get one plan, and each kind has an order of
 * its own. The runtime also tells kinds with other orders apart by itself, but does so sooner if the engine names
 * them. It keeps eight kinds. Another one takes the place of the kind that was used least recently.
 * @param kind The name of the kind, of 1 to 63 bytes, which is copied. NULL: none. @experimental
 * @retval SH_OK                     The step is under way.
 * @retval SH_ERROR_INVALID_ARGUMENT The name is empty or too long.
 * @retval SH_ERROR_INVALID_STATE    A step or a capture of the runtime is under way, or the runtime is released:
 *                                   see sh_pause().
 * @retval SH_ERROR_BUDGET           No plan fits into the runtime's share.
 * @retval SH_ERROR_BUSY             Other runtimes still hold part of the share. They give it up when their steps
 *                                   end and their views are released. A runtime whose plan is held by a graph gives
 *                                   it up when the graph is destroyed, or after sh_plan() with SH_PLAN_DROP_GRAPHS.
 * @retval SH_ERROR_BACKEND          The driver failed now, or earlier work failed: see sh_acquire().
 * @blocks While it plans, and for sh_runtime_options.share_wait_ns. It never blocks if the plan stays.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_step_begin(sh_runtime* runtime, const char* kind);

/** @experimental A kind of step: steps that use the same blocks in the same order, and compute about as long. */
typedef struct sh_kind_info {
    uint32_t struct_size;
    uint32_t reserved;
    char name[64];       /**< The name of sh_step_begin(). Empty if the runtime tells the kind apart by itself. */
    uint64_t steps;      /**< Steps of this kind that the runtime has recognised. */
    uint64_t compute_ns; /**< Compute time of a step, measured. 0: not known yet. */
} sh_kind_info;

/**
 * Lists the kinds of step that a runtime knows: at most eight, those that came lately.
 * @param infos     The first `capacity` kinds are written here. Each element's struct_size must be set. May be NULL if
 *                  `capacity` is 0.
 * @param out_count The number of kinds, which may be more than `capacity`.
 * @retval SH_OK The list is written.
 * @blocks Never.
 * @experimental
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_kind_list(sh_runtime* runtime, sh_kind_info* infos, uint64_t capacity,
                                            uint64_t* out_count);

/**
 * Ends a step. The runtime compares the order that it has seen with the plan's. Views may stay held. Loads for the next
 * step go on.
 * @retval SH_OK                   The step has ended.
 * @retval SH_ERROR_INVALID_STATE  No step is under way; or a stream of the step captures, and the step has ended.
 * @retval SH_ERROR_INVALID_HANDLE A stream of the step does not exist any more. The step has ended.
 * @retval SH_ERROR_IO             The file of sh_telemetry_start() could not be written. The step has ended.
 * @retval SH_ERROR_BACKEND        The driver failed. The step has ended.
 * @blocks Never, except when a guest leaves with it: see sh_scope_end(). It writes a line to the file of
 *         sh_telemetry_start().
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_step_end(sh_runtime* runtime);

/**
 * Makes a block's bytes usable on `stream`: work that is queued there after this call sees them. Acquires may come in
 * any order, even outside a step. A block may be held several times and on several streams. Each acquire needs one
 * release. Other threads may release views while this call waits. The call never waits for a view to be released.
 *
 * @param stream   The stream that will use the view. sh_release() gets the same stream, which the library does not
 *                 check. Some backends check the stream late, or not at all.
 * @param flags    0 or SH_ACQUIRE_NO_WAIT.
 * @param out_view Valid on success until the matching sh_release(). SH_NOT_READY gives no view.
 * @retval SH_OK                  The view is held.
 * @retval SH_NOT_READY           The bytes are not there yet. Only with SH_ACQUIRE_NO_WAIT.
 * @retval SH_ERROR_HELD          A view holds the pages that the block needs. The text names its block. See
 *                                sh_runtime_options.max_held and sh_invalidate_blocks().
 * @retval SH_ERROR_SOURCE        The load or an earlier prefetch failed. The next acquire tries the load again.
 * @retval SH_ERROR_CALLBACK      The load failed. The next acquire tries it again.
 * @retval SH_ERROR_BACKEND       The load failed, and the next acquire tries it again. Or earlier work of the
 *                                runtime failed: a write-back, or another device that brings weights. The call
 *                                returns such an error once, for any block.
 * @retval SH_ERROR_INVALID_STATE The block's source is being updated; a graph has been entered and the block
 *                                streams, or is packed, must be loaded, and the graph unpacks weights; the
 *                                stream captures and the runtime does not; or the runtime is released: see
 *                                sh_pause().
 * @retval SH_ERROR_BUSY          The call plans, and other runtimes still hold part of the share: see
 *                                sh_step_begin(), whose SH_ERROR_BUDGET is possible, too.
 * @retval SH_ERROR_UNSUPPORTED   In a capture: the block's source is not pinned, or is packed and the plan does
 *                                not let the device unpack, or the plan does not know the block.
 * @blocks Not for bytes of pinned sources, unless workers unpack them (sh_segment.packed_bytes). For bytes of other
 *         sources it blocks until the last piece of the load was issued, which sh_runtime_stats.stall_ns counts. With
 *         SH_STREAM_HOST it blocks until the bytes are there. For memory it blocks while it plans (outside a step, or
 *         without a plan), while it writes back dirty contents that are in the way, and while streams use the memory
 *         that a block outside the order takes.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_acquire(sh_runtime* runtime, sh_block block, sh_stream stream, uint32_t flags,
                                          sh_view* out_view);

/**
 * Acquires a set of blocks, all or none. The call begins all loads before it waits for any of them. A block may occur
 * more than once. The call holds no view after SH_NOT_READY or an error, loads that were begun go on, and the contents
 * of `out_views` are undefined.
 * @param out_views `count` views in the order of `blocks`. Each needs its struct_size.
 * @retval SH_OK        All views are held.
 * @retval SH_NOT_READY As for sh_acquire(). The errors are those of sh_acquire(), too.
 * @blocks As sh_acquire().
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_acquire_many(sh_runtime* runtime, const sh_block* blocks, uint64_t count,
                                               sh_stream stream, uint32_t flags, sh_view* out_views);

/**
 * Ends one acquire. Work that was queued on `stream` before this call may still use the view. The caller must have
 * finished its use if `stream` is SH_STREAM_HOST. The call begins the loads that now have room.
 * @param stream The stream that used the view. The library waits only for work on this stream before it uses the memory
 *               again. A runtime that cannot tell when the stream's work ends is lost.
 * @retval SH_OK                   The view is released.
 * @retval SH_ERROR_INVALID_STATE  The block is not held; or the stream captures and the runtime does not. The view
 *                                 stays held.
 * @retval SH_ERROR_INVALID_HANDLE Also if the device does not know the stream. The view stays held.
 * @retval SH_ERROR_BACKEND        The driver failed, or earlier work failed: see sh_acquire(). The view is released.
 * @blocks Never, except for a stream that the runtime cannot note (after an error of the driver, or beyond 64 streams),
 *         and when a guest leaves with it: see sh_scope_end().
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_release(sh_runtime* runtime, sh_block block, sh_stream stream);

/**
 * Begins to load blocks outside the order that will be used soon. The call takes no memory from views or from blocks
 * that the order needs first. It is a hint that may do nothing, and does nothing before there is a plan. The acquire of
 * a block returns the error of its load.
 * @retval SH_OK                  The hint is taken.
 * @retval SH_ERROR_INVALID_STATE The runtime is released: see sh_pause().
 * @blocks For memory, as sh_acquire().
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_prefetch(sh_runtime* runtime, const sh_block* blocks, uint64_t count);

/**
 * Copies bytes of a held block to host memory, after the work that was queued on `stream` so far. This call is for
 * verification and for debugging. The contents of `buffer` are undefined after an error.
 * @param offset Offset of the bytes in the block.
 * @param bytes  Number of bytes, and size of `buffer`.
 * @retval SH_OK                     The bytes are copied.
 * @retval SH_ERROR_INVALID_STATE    The block is not held, a capture is under way, or the stream captures.
 * @retval SH_ERROR_INVALID_ARGUMENT The range is not inside the block.
 * @retval SH_ERROR_BACKEND          The driver failed. It may still write to `buffer` until the device is synchronized.
 * @blocks Until the bytes are copied.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_read_block(sh_runtime* runtime, sh_block block, sh_stream stream, uint64_t offset,
                                             void* buffer, uint64_t bytes);

/**
 * Reads the sources of a held block again, on the calling thread, and compares them with the block's bytes on the
 * device. Packed tensors are unpacked on the host for that, and their checksums compared. This call is for verification
 * and for debugging: it brings all bytes back over the link, and takes a few MiB of host memory. Bytes without a
 * segment are not compared. The source of a segment that SH_BLOCK_PACK has copied is the library's copy.
 *
 * The call holds a view of its own, also if the caller releases its view meanwhile. Until the call returns, the views
 * of the block count as held for all other calls, but sh_unregister_blocks() and updates of the sources wait for it.
 * The engine must not change the block meanwhile, nor its sources outside an update.
 * @param stream The stream whose queued work is waited for, or SH_STREAM_HOST. It need not be that of the acquire.
 * @retval SH_OK                  All bytes are equal.
 * @retval SH_ERROR_CHECKSUM      A byte differs. The text names the block, the offset of the first byte that differs,
 *                                and both values.
 * @retval SH_ERROR_SOURCE        A source cannot be read, or a packed tensor is damaged.
 * @retval SH_ERROR_CALLBACK      The callback of a source failed.
 * @retval SH_ERROR_INVALID_STATE The block is not held, has changes that were not written back, or is being updated;
 *                                the block, or one that shares its pages, was invalidated or not loaded whole; a
 *                                capture is under way, or the stream captures.
 * @retval SH_ERROR_UNSUPPORTED   The block has an on_load, which may change what is loaded, or the device has no
 *                                contents.
 * @retval SH_ERROR_BACKEND       The driver failed.
 * @blocks Until the bytes are compared. Other calls go on meanwhile.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_verify_block(sh_runtime* runtime, sh_block block, sh_stream stream);

/**
 * Makes the runtime forget a stream that is destroyed before the step ends. The call waits for the work that was queued
 * on the stream before its last release. Streams that the runtime has not seen are ignored.
 * @retval SH_OK            The stream may be destroyed.
 * @retval SH_ERROR_BACKEND The driver failed.
 * @blocks Until the work has ended.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_stream_forget(sh_runtime* runtime, sh_stream stream);

#ifdef __cplusplus
}
#endif

#endif
