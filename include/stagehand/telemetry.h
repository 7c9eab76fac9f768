/*
 * What happened: counters of a runtime, a trace for Perfetto, one line of JSON a step.
 */
#ifndef STAGEHAND_TELEMETRY_H
#define STAGEHAND_TELEMETRY_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Counters since the runtime was created. They only grow, but for those from last_step_ns to guest_bytes. Times are of the device's clock, in nanoseconds. */
typedef struct sh_runtime_stats {
    uint32_t struct_size;
    uint32_t lost;              /**< 1: the runtime can only be destroyed; calls that need it to work return SH_ERROR_RUNTIME_LOST. */
    uint64_t steps;             /**< Steps ended, and graphs left outside a step. */
    uint64_t acquires;
    uint64_t hits;              /**< Acquires whose bytes were there or on their way; `in_time` says how many were there. */
    uint64_t misses;            /**< Acquires that had to begin a load. */
    uint64_t loads;             /**< Loads begun. */
    uint64_t load_pieces;       /**< Copy commands that they were made of. */
    uint64_t bytes_to_device;   /**< Bytes of those commands. */
    uint64_t bytes_to_host;     /**< Bytes written back. */
    uint64_t write_backs;
    uint64_t cancelled_loads;   /**< Loads given up because the order was another. */
    uint64_t failed_loads;
    uint64_t host_waits;        /**< Times that a caller waited in acquire for bytes. Waits for memory or for a plan are not counted. */
    uint64_t stall_ns;          /**< Time spent so. */
    uint64_t plans;             /**< Plans put into force. */
    uint64_t remaps;            /**< Times that pages were mapped for a block outside the order. */
    uint64_t evictions;         /**< Contents of blocks outside the order dropped for others. */
    uint64_t given_up_bytes;    /**< Device memory given up because the share became smaller; contents in it were dropped. */
    uint64_t last_step_ns;      /**< From the last step's begin to its end; of a launch, from sh_graph_enter() to sh_graph_leave() on the host. */
    uint64_t resident_bytes;    /**< Of the plan in force, see sh_plan_info. */
    uint64_t ring_bytes;
    uint64_t unordered_bytes;
    uint64_t held_bytes;        /**< Device memory held now. */
    uint64_t share_bytes;       /**< Its share of the device's budget now. */
    uint64_t protected_bytes;   /**< Kept from others by protection, see residency.h. */
    uint64_t reserved_bytes;    /**< Of its reservation, what is in force. */
    uint64_t guest_bytes;       /**< As a guest it was let in with so much, its workspace aside; 0: it is none. */
    /** Of the hits, those whose bytes were all on the device when they were acquired, so that neither the caller nor the stream had to wait for
        them; the others were still on their way. Only grows. Where an engine queues work far ahead of the device it asks early: bytes that come
        before the stream does are not counted, so this is the least that was in time. \since 0.1 */
    uint64_t in_time;
} sh_runtime_stats;

#define SH_RUNTIME_STATS_INIT {sizeof(sh_runtime_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
SH_API void sh_runtime_stats_init(sh_runtime_stats *stats);

/** Reads the counters. Returns SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_STRUCT. \since 0.1 */
SH_API sh_status sh_stats(sh_runtime *runtime, sh_runtime_stats *out_stats);

/**
 * Starts to record a trace of the whole process into `path` (created or truncated), in the JSON format that Perfetto and
 * chrome://tracing open: acquires, waits, loads, write-backs, plans, steps, held memory, reservations and scopes of every runtime. The
 * variable STAGEHAND_TRACE=path does it from
 * the first device on until the process exits. A forked child records nothing and leaves the file alone.
 * @return SH_OK, SH_ERROR_INVALID_ARGUMENT (NULL), SH_ERROR_INVALID_STATE (a trace is being recorded), SH_ERROR_IO. \since 0.1
 */
SH_API sh_status sh_trace_start(const char *path);

/** Ends the trace and completes its file. Returns SH_OK, SH_ERROR_INVALID_STATE (none is recorded), SH_ERROR_IO. Blocks. \since 0.1 */
SH_API sh_status sh_trace_stop(void);

/**
 * Writes one JSON object a step of this runtime to `path` (created or truncated), at the end of each step, and when a graph
 * is left outside a step; NULL stops it.
 * docs/telemetry.md lists the fields. A line that cannot be written is an SH_ERROR_IO of sh_step_end(). A file that was
 * being written is closed, unless the new one cannot be opened.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_IO. \since 0.1
 */
SH_API sh_status sh_telemetry_open(sh_runtime *runtime, const char *path);

/**
 * Begins to answer questions about this process's devices and runtimes on a Unix socket, which `stagehand top` asks: one thread of the
 * library waits for them, and nothing is done until one comes. Then each runtime's lock is taken for as long as it takes to read
 * its counters. docs/telemetry.md tells what is asked and answered. Only the user who runs the process (and root) can connect. A
 * socket that an ended process left at `path` is replaced; anything else there is an error. The file is removed by
 * sh_monitor_stop(), and when the process exits. A forked child does not answer and leaves the file alone. The
 * variable STAGEHAND_MONITOR=path does it from the first device on; "1" means the default path.
 * @param path At most 107 bytes; its folder must be there. NULL: "stagehand/<process id>.sock" in $XDG_RUNTIME_DIR, or, where that is
 *             not a folder that only the user can write to, "stagehand-<user id>/<process id>.sock" in /tmp. The folder is made if
 *             need be, and must be a real one that belongs to the user and is open to nobody else.
 * @return SH_OK, SH_ERROR_INVALID_ARGUMENT (path empty or too long), SH_ERROR_INVALID_STATE (it answers already), SH_ERROR_IO (the text
 *         says what is wrong with the path). May wait a second for a folder that others have locked. \since 0.1
 */
SH_API sh_status sh_monitor_start(const char *path);

/** Ends it and removes the socket; who is being answered is let go. Returns SH_OK, SH_ERROR_INVALID_STATE (it does not answer). Blocks. \since 0.1 */
SH_API sh_status sh_monitor_stop(void);

#ifdef __cplusplus
}
#endif

#endif
