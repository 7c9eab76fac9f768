/*
 * Graphs: an engine captures a step into a graph of its driver (CUDA, HIP), streaming included, and launches the graph
 * again and again. Capturing:
 *
 *     sh_plan(rt, NULL, NULL);                             // make a plan before the capture
 *     cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
 *     sh_capture_begin(rt, stream);
 *     for each block:
 *         sh_acquire(...);
 *         launch(stream, view.address);
 *         sh_release(...);
 *     sh_capture_end(rt, stream, &graph);
 *     cudaStreamEndCapture(stream, &native);
 *
 * Launching:
 *
 *     sh_graph_enter(graph, stream);
 *     cudaGraphLaunch(instance, stream);
 *     sh_graph_leave(graph, stream);
 *
 * The library never sees the launch itself, so the launch stands between enter and leave. A graph loads every streamed
 * byte once, at its first use, whatever the device memory contains when the graph begins. The graph reads the sources
 * when it runs: the next launch uses the new contents if a source in pinned memory changes between launches.
 * sh_graph_enter() loads resident parts that are missing or were invalidated.
 *
 * A graph holds the plan. A second step (prefill and decode, say) is captured under the same plan, without sh_plan().
 * One capture may contain several runtimes: call begin, end, enter and leave for each runtime. End the driver's capture
 * and discard it if a begin or an end fails. Destroy the graph with sh_graph_destroy() if the driver's end fails after
 * sh_capture_end().
 */
#ifndef STAGEHAND_GRAPH_H
#define STAGEHAND_GRAPH_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The library's record of a captured step. Destroy it when the driver's graph will not be launched any more. */
typedef struct sh_graph sh_graph;

/**
 * Begins to record the runtime's part of a capture that is under way on `stream`. Every acquire and release of the
 * runtime until sh_capture_end() belongs to the capture and must name a stream of the capture. sh_step_begin(),
 * sh_read_block(), sh_write_back(), sh_mark_dirty(), sh_guest_begin() and sh_trim() return SH_ERROR_INVALID_STATE.
 * Captures of other runtimes, and of the engine alone, are not affected.
 *
 * The runtime cannot be used on a capturing stream before this call. sh_acquire() returns SH_ERROR_INVALID_STATE there.
 * sh_release() or sh_step_end() returns the error instead if the block's bytes are on the device.
 *
 * An acquire in a capture needs a block that the plan knows. The sources of streamed parts must be pinned
 * (sh_host_alloc(), a successful SH_BLOCK_PIN, or pinned by the engine) or device memory. Packed ones need a plan that
 * lets the device unpack (sh_plan_info.unpack_bytes). A mutable block of SH_BLOCK_PACK must have been written back or
 * loaded plain. Otherwise the acquire returns SH_ERROR_UNSUPPORTED, the text names the block, and the capture goes on.
 * @retval SH_OK                     The capture is recorded.
 * @retval SH_ERROR_INVALID_ARGUMENT `stream` is SH_STREAM_HOST.
 * @retval SH_ERROR_INVALID_STATE    `stream` does not capture; a step or a capture of the runtime is under way; a view
 *                                   is held; or there is no plan, or it has to change: call sh_plan() first. The call
 *                                   does not fail because other runtimes hold part of the share.
 * @retval SH_ERROR_UNSUPPORTED      The backend has no graphs.
 * @retval SH_ERROR_BACKEND          The driver failed.
 * @blocks Never.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_capture_begin(sh_runtime* runtime, sh_stream stream);

/**
 * Ends the recording before the engine ends the driver's capture. The library joins its copies to `stream`. The graph
 * holds the runtime's plan until it is destroyed: the plan does not change, a sh_plan() that would change it returns
 * SH_ERROR_INVALID_STATE (or makes the graph stale, with SH_PLAN_DROP_GRAPHS), and blocks that the graph uses cannot be
 * unregistered.
 * @param out_graph NULL: the capture is discarded, no view stays held, and the driver's graph must not be launched.
 *                  NULL is also allowed after the driver's capture has ended.
 * @retval SH_OK                  The graph exists, or the capture is discarded.
 * @retval SH_ERROR_INVALID_STATE No capture of this runtime began on this stream; or views are held and `out_graph` is
 *                                not NULL. The capture goes on.
 * @retval SH_ERROR_BACKEND       The driver failed now, or in an earlier call of the capture that launches depend on.
 *                                The capture has ended and there is no graph.
 * @blocks Never.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_capture_end(sh_runtime* runtime, sh_stream stream, sh_graph** out_graph);

/**
 * Prepares a launch on `stream`. Work that is queued there from now on comes after the uses of all memory that the
 * graph's copies overwrite, and after the loads of the parts that must be resident. Until sh_graph_leave(), other
 * acquires of the runtime's streamed blocks return SH_ERROR_INVALID_STATE. So do acquires that would load a packed
 * block if the graph unpacks weights. A launch outside a step counts as a step of the runtime, and the frequency of
 * steps decides the runtime's share: see residency.h. Launch nothing and do not call sh_graph_leave() after an error.
 * @retval SH_OK                     The graph may be launched.
 * @retval SH_ERROR_STALE            The plan has changed, or memory in which the graph unpacks weights has another
 *                                   address. Capture the graph again.
 * @retval SH_ERROR_HELD             A view holds memory that the graph would overwrite.
 * @retval SH_ERROR_INVALID_ARGUMENT `stream` is SH_STREAM_HOST.
 * @retval SH_ERROR_INVALID_STATE    A source that the graph reads is being updated; a graph of the runtime has been
 *                                   entered; a capture is under way; the stream captures; or the runtime is released:
 *                                   see sh_pause().
 * @retval SH_ERROR_BUSY             Another thread changed a block that the graph uses while this call waited.
 * @retval SH_ERROR_SOURCE           A load failed.
 * @retval SH_ERROR_CALLBACK         A load failed.
 * @retval SH_ERROR_BACKEND          A load or the driver failed. Or earlier work failed, launches included: see
 *                                   sh_acquire(). The next call returns SH_ERROR_STALE if the graph must be captured
 *                                   again.
 * @blocks Only for loads from sources that are not pinned, and for write-backs into such sources. A graph
 *         that unpacks weights also waits until workers have issued the runtime's other loads.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_graph_enter(sh_graph* graph, sh_stream stream);

/**
 * Ends sh_graph_enter(). Call this function after the launch on `stream`, or without a launch. Later work of the
 * runtime comes after the launch.
 * @retval SH_OK                  The graph is left.
 * @retval SH_ERROR_INVALID_STATE The graph was not entered on this stream. Or the stream captures: the graph is left.
 * @retval SH_ERROR_IO            The file of sh_telemetry_start() could not be written. The graph is left.
 * @retval SH_ERROR_BACKEND       The driver failed. The graph is left.
 * @blocks Never, except for a stream that the runtime cannot note (after an error, or beyond 64 streams).
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_graph_leave(sh_graph* graph, sh_stream stream);

/**
 * Waits until launches have ended and frees the graph. The driver's graph must not be launched afterwards. Graphs of a
 * destroyed runtime must be destroyed too. NULL and values that are not graphs are ignored.
 * @blocks Until launches have ended.
 * \since 0.1
 */
SH_API void sh_graph_destroy(sh_graph* graph);

#ifdef __cplusplus
}
#endif

#endif
