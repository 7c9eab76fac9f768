/*
 * Graphs: a step that an engine captures into a graph of its driver (CUDA, HIP) and launches again and again, with the streaming
 * inside. Capturing:
 *
 *     sh_plan(rt, NULL, NULL);                             // a plan is made before, not while a stream captures
 *     cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
 *     sh_capture_begin(rt, stream);
 *     for each block:  sh_acquire(...);  launch(stream, view.address);  sh_release(...);
 *     sh_capture_end(rt, stream, &graph);
 *     cudaStreamEndCapture(stream, &native);
 *
 * Launching:
 *
 *     sh_graph_enter(graph, stream);  cudaGraphLaunch(instance, stream);  sh_graph_leave(graph, stream);
 *
 * The library never sees the launch itself, which is why it is put between brackets. A graph brings every streamed byte once at its
 * first use, whatever lies in device memory when it begins, and reads the sources when it runs: a source in pinned memory may get
 * other contents between launches, and the next one uses them. What the plan keeps resident is loaded by sh_graph_enter() where it is
 * missing or was invalidated. While a graph lives the plan stays: another step (prefill and decode, say) is captured under the same one,
 * without sh_plan(). One capture may hold several runtimes: begin, end, enter and leave are called for each. Where a begin or an end fails,
 * end the driver's capture and discard it; where the driver's fails after sh_capture_end(), sh_graph_destroy() the graph.
 */
#ifndef STAGEHAND_GRAPH_H
#define STAGEHAND_GRAPH_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What the library knows of a captured step. Destroy it when the driver's graph is not launched any more. */
typedef struct sh_graph sh_graph;

/**
 * Begins to record the runtime's part of a capture that is under way on `stream`. Until sh_capture_end(), every acquire and release
 * on the runtime belongs to the capture: it must name a stream that takes part in it, and no steps, reads, write-backs or marks
 * of dirty blocks are possible (SH_ERROR_BUSY). Captures of other runtimes and of the engine alone are not disturbed.
 * Without it a runtime is of no use on a stream that captures, and says SH_ERROR_INVALID_STATE: sh_acquire(), or, of a block whose bytes are
 * there, sh_release() (the view stays held) or sh_step_end().
 * In a capture an acquire needs a block that the plan knows, and sources that are pinned (sh_host_alloc(), SH_BLOCK_PIN where it
 * worked, or pinned by the engine) or device memory for all that streams: else SH_ERROR_UNSUPPORTED, with the block's name; the capture goes on.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_ARGUMENT (SH_STREAM_HOST), SH_ERROR_INVALID_STATE (`stream` does not capture;
 *         a step or a capture is under way; there is no plan or it has to change: call sh_plan() before. That others hold part of its
 *         share is no reason), SH_ERROR_BUSY (views are
 *         held), SH_ERROR_UNSUPPORTED (the backend has no graphs), SH_ERROR_BACKEND. Does not block. \since 0.1
 */
SH_API sh_status sh_capture_begin(sh_runtime *runtime, sh_stream stream);

/**
 * Ends the recording, before the engine ends the capture; the library's copies are joined back to `stream`. `out_graph` NULL: the
 * capture failed or is not wanted, and nothing is kept, nor any view held; also where the engine has ended the driver's capture
 * already. The driver's graph must not be launched then.
 * A graph holds the runtime's plan: until it is destroyed the plan does not change, sh_plan() that would change it returns
 * SH_ERROR_BUSY (or, by SH_PLAN_DROP_GRAPHS, makes the graphs stale), and blocks that it uses cannot be unregistered.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_STATE (no capture of this runtime began on this stream; views are held and
 *         `out_graph` is not NULL: the capture goes on), SH_ERROR_BACKEND (the capture has ended, nothing is kept). Does not block. \since 0.1
 */
SH_API sh_status sh_capture_end(sh_runtime *runtime, sh_stream stream, sh_graph **out_graph);

/**
 * Prepares a launch on `stream`: work queued there from now on comes after everything on the device that the graph's copies may not
 * overtake, and after the loads of what must be resident. Waits on the host only for those whose sources are not pinned, and for
 * write-backs into such sources. Until sh_graph_leave(), other acquires of streamed blocks of the runtime return SH_ERROR_BUSY.
 * Outside a step a launch counts as one: how often a runtime is used decides its share (see residency.h).
 * @return SH_OK; SH_ERROR_STALE (the plan has changed since: capture anew), SH_ERROR_HELD (a view holds what would be overwritten),
 *         SH_ERROR_BUSY (a source that it reads is being updated), SH_ERROR_INVALID_HANDLE (the graph or its runtime is gone),
 *         SH_ERROR_INVALID_ARGUMENT (SH_STREAM_HOST), SH_ERROR_INVALID_STATE (a graph has been entered, a capture is under way, or the
 *         stream captures), or
 *         what loading may return. After an error nothing may be launched, and sh_graph_leave() is not called. \since 0.1
 */
SH_API sh_status sh_graph_enter(sh_graph *graph, sh_stream stream);

/**
 * After the launch on `stream`, or instead of it: other work of the runtime comes after it. Does not block.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_STATE (not entered on this stream); or, when it has been left all the same, SH_ERROR_BACKEND,
 *         SH_ERROR_IO (sh_telemetry_open()). \since 0.1
 */
SH_API sh_status sh_graph_leave(sh_graph *graph, sh_stream stream);

/**
 * Waits until launches have finished and frees the graph; the driver's graph must not be launched after. NULL, and what is not a graph,
 * are ignored. Graphs of a runtime that was destroyed are still to be destroyed. Blocks. \since 0.1
 */
SH_API void sh_graph_destroy(sh_graph *graph);

#ifdef __cplusplus
}
#endif

#endif
