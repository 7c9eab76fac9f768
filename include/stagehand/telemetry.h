/*
 * Telemetry: counters of a runtime, a trace for Perfetto, and one line of JSON for each step. control.h has answers to
 * other processes.
 */
#ifndef STAGEHAND_TELEMETRY_H
#define STAGEHAND_TELEMETRY_H

#include "base.h"
#include "spill.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Counters since the runtime was created. Counters only grow. The fields from last_step_ns to guest_bytes are values of
 * this moment. Times are of the device's clock, in nanoseconds.
 */
typedef struct sh_runtime_stats {
    uint32_t struct_size;
    uint32_t lost;     /**< 1: the runtime is lost, and most calls return SH_ERROR_RUNTIME_LOST. */
    uint64_t steps;    /**< Steps that have ended, and graphs that were left outside a step. */
    uint64_t acquires; /**< Views acquired. */
    uint64_t hits;     /**< Acquires whose bytes were there or on their way. */
    /** Hits whose bytes were all there, so that neither the caller nor the stream waited. An engine that queues work
        far ahead of the device asks early: bytes that come after the acquire but before the stream needs them are not
        counted. */
    uint64_t in_time;
    uint64_t misses;          /**< Acquires that began a load. */
    uint64_t loads;           /**< Loads that were begun. */
    uint64_t load_pieces;     /**< Copy commands of these loads. */
    uint64_t bytes_to_device; /**< Bytes of these commands, as they cross the link: packed weights count packed. */
    uint64_t bytes_to_host;   /**< Bytes written back. */
    uint64_t write_backs;     /**< Write-backs that were begun. */
    uint64_t cancelled_loads; /**< Loads that were given up because the engine used another order. */
    uint64_t failed_loads;    /**< Loads that failed. */
    /** Acquires in which the caller waited for bytes. Waits for memory or for a plan are not counted. */
    uint64_t host_waits;
    uint64_t stall_ns;       /**< Time of these waits. */
    uint64_t plans;          /**< Plans that were put into force. */
    uint64_t remaps;         /**< How often pages were mapped for a block outside the order. */
    uint64_t evictions;      /**< How often contents of a block outside the order were dropped for another block. */
    uint64_t given_up_bytes; /**< Device memory that was given up because the share became smaller. */
    uint64_t
        last_step_ns; /**< Length of the last step. For a graph: host time from sh_graph_enter() to sh_graph_leave(). */
    uint64_t resident_bytes;  /**< Of the plan in force: see sh_plan_info. */
    uint64_t ring_bytes;      /**< Of the plan in force. */
    uint64_t unordered_bytes; /**< Of the plan in force. */
    uint64_t held_bytes;      /**< Device memory that the runtime holds. */
    uint64_t share_bytes;     /**< The runtime's share of the device's budget. */
    uint64_t protected_bytes; /**< Memory that protection keeps from other runtimes: see residency.h. */
    uint64_t reserved_bytes;  /**< The part of the runtime's reservation that is in force. */
    /** Memory granted to the runtime as a guest, without its workspace. 0: the runtime is no guest. */
    uint64_t guest_bytes;
    uint64_t helped_bytes; /**< The part of bytes_to_device that came over other links. A counter. @experimental
                               \since 0.2 */
} sh_runtime_stats;

/**
 * Reads the counters. The runtime may be lost.
 * @retval SH_OK The counters are written.
 * @blocks Never.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_runtime_get_stats(sh_runtime* runtime, sh_runtime_stats* out_stats);

/**
 * Records a trace of the whole process into a file, in the JSON format that Perfetto and chrome://tracing open:
 * acquires, waits, loads, write-backs, plans, steps, held memory, reservations and scopes of every runtime. The
 * variable STAGEHAND_TRACE=path does the same from the first device on until the process exits. A forked child records
 * nothing and does not touch the file.
 * @param path      Created or truncated.
 * @param out_scope sh_scope_end() ends the trace and completes its file: SH_ERROR_IO if it could not be written. Must
 *                  not be NULL.
 * @retval SH_OK                  The trace is being recorded.
 * @retval SH_ERROR_INVALID_STATE A trace is being recorded already.
 * @retval SH_ERROR_IO            The file cannot be written.
 * @blocks While it opens the file.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_trace_start(const char* path, sh_scope** out_scope);

/**
 * Writes one JSON object for each step of a runtime or of a spiller to a file: when the step ends, and when a graph is
 * left outside a step. docs/telemetry.md lists the fields. sh_step_end(), sh_graph_leave() and sh_spiller_end_step()
 * return SH_ERROR_IO if a line cannot be written.
 * @param runtime   The runtime, or NULL.
 * @param spiller   The spiller, or NULL. One of them is given.
 * @param path      Created or truncated.
 * @param out_scope sh_scope_end() closes the file: SH_ERROR_IO if it could not be completed. NULL: the file is open as
 *                  long as the runtime or the spiller.
 * @retval SH_OK                  The lines are written from the next step on.
 * @retval SH_ERROR_INVALID_STATE Another file is open for this runtime or spiller.
 * @retval SH_ERROR_IO            The file cannot be opened.
 * @blocks While it opens the file.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_telemetry_start(sh_runtime* runtime, sh_spiller* spiller, const char* path,
                                                  sh_scope** out_scope);

#ifdef __cplusplus
}
#endif

#endif
