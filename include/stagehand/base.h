/*
 * Status codes, error texts, the log, and the types that every other header uses.
 *
 * Rules for the whole interface:
 *
 *  - Names. A call in which a runtime acts on its blocks or its memory is sh_<verb>_<noun>(): sh_acquire(),
 *    sh_protect_blocks(), sh_reserve(). Every other call is sh_<object>_<verb>(): sh_device_open(), sh_step_begin(),
 *    sh_graph_enter(). Calls that read an object are sh_<object>_get_<noun>().
 *  - Structs. Every struct begins with `uint32_t struct_size`. The caller sets this field to the size of the struct:
 *    in structs that the library reads, by SH_..._INIT or sh_..._init(); in structs that it writes, by
 *    `sh_view view = {.struct_size = sizeof view}`, or in C++ `auto view = sh_sized<sh_view>()`. A field that is zero
 *    has its default. Structs only grow at their ends: the library reads and writes no more than struct_size bytes, so
 *    programs that were built with older headers keep working. Bytes that this library does not know must be zero, and
 *    so must fields that are named "reserved". All elements of an array of structs have the same struct_size. That size
 *    is also the distance between two elements. A plain value, which never gets another field, has no struct_size:
 *    sh_memory_range alone, and for backends sh_backend_range and sh_backend_digest.
 *  - Outputs. Output arguments come last. A call writes its outputs only when it returns SH_OK, unless its comment says
 *    otherwise.
 *  - Numbers. Counts and sizes are uint64_t in arguments. Sizes are in bytes, times in nanoseconds.
 *  - Handles. A handle that is NULL, was destroyed, or belongs to another object gives SH_ERROR_INVALID_HANDLE, never a
 *    crash. Streams are the exception, because the driver owns them and need not notice an invalid stream.
 *  - Scopes. What lasts until the caller ends it is a sh_scope: protections, reservations, guests, callbacks of pauses,
 *    traces, telemetry, the control. sh_scope_end() ends any of them.
 *  - States. SH_ERROR_BUSY names a state that ends without help from the caller, for example another runtime's step:
 *    try the call again later. SH_ERROR_INVALID_STATE names a state that the caller must end first, for example a view
 *    that it holds.
 *  - Every call. A call may return SH_ERROR_INVALID_STRUCT, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_ARGUMENT (a
 *    required pointer is NULL, a flag is unknown, or a count is above 2^32), SH_ERROR_FORKED,
 *    SH_ERROR_OUT_OF_HOST_MEMORY and SH_ERROR_INTERNAL. A call that lists SH_ERROR_BACKEND may also return
 *    SH_ERROR_OUT_OF_DEVICE_MEMORY, SH_ERROR_UNSUPPORTED and SH_ERROR_DEVICE_LOST. A call on a runtime or its graphs
 *    may return SH_ERROR_RUNTIME_LOST, and SH_ERROR_CANCELLED if another thread destroys the runtime meanwhile. A
 *    comment names these statuses only if it has more to say about them.
 *  - Experimental. What is marked @experimental may still change or go in any version, also after a freeze of the ABI:
 *    helpers, packing, kinds of step, and the control. Everything else keeps its meaning as docs/abi-policy.md says.
 *  - Threads. Every function may be called from any thread, and from several at once, unless its comment has a line
 *    "@threads".
 *  - Waiting. A call "blocks" when the calling thread may wait for the device, for a file, or for a thread of the
 *    library. Each comment says so in its line "@blocks". A call on a runtime also waits while another thread's call on
 *    the same runtime plans, pins memory or forgets a stream. The lines "@blocks" do not repeat this.
 *  - Callbacks. A callback must not call the library, unless its comment says which functions it may call.
 *  - Strings are UTF-8 and end with NUL. The library copies the strings that it keeps.
 *  - The library never prints (except with the variable STAGEHAND_LOG), never exits, never raises a signal, and lets no
 *    C++ exception out.
 *  - After fork() every call in the child that returns a status returns SH_ERROR_FORKED. Calls that return nothing do
 *    nothing.
 *
 * docs/functions.md lists all functions with these properties.
 */
#ifndef STAGEHAND_BASE_H
#define STAGEHAND_BASE_H

#include <stddef.h>
#include <stdint.h>

#include "version.h"

#ifndef SH_API
#define SH_API __attribute__((visibility("default")))
#endif

/**
 * The compiler warns if the result is not used. Define SH_MUST_CHECK as empty before the first include to switch the
 * warning off.
 */
#ifndef SH_MUST_CHECK
#define SH_MUST_CHECK __attribute__((warn_unused_result))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The result of a call. 0 is success, a positive value is success with information, a negative value is an error.
 * Values never change. New values may be added: treat an unknown negative value as an error of its group of a hundred,
 * as numbered below.
 */
typedef int32_t sh_status;

enum {
    SH_OK = 0, /**< Success. */
    /** The bytes are not on the device yet, and the caller asked not to wait. No view is held. */
    SH_NOT_READY = 1,
    SH_KEPT = 2, /**< The saved tensor stays on the device: see spill.h. */

    /* 1xx: a mistake of the caller. Nothing has changed, unless the call's comment says otherwise. */
    SH_ERROR_INVALID_ARGUMENT = -101, /**< A value is out of range or contradicts another. The text names the value. */
    SH_ERROR_INVALID_HANDLE = -102,   /**< The handle is NULL, was destroyed, or belongs to another object. */
    SH_ERROR_INVALID_STRUCT =
        -103, /**< struct_size is impossible, or bytes that the library does not know are not zero. */
    SH_ERROR_INVALID_STATE =
        -104,                    /**< The call is not allowed now. The caller must end the state that the text names. */
    SH_ERROR_NOT_FOUND = -105,   /**< There is no backend, no device or no tag of that name. */
    SH_ERROR_UNSUPPORTED = -106, /**< The backend cannot do it. */
    SH_ERROR_FORKED = -107,      /**< The process was forked after the library was used. */
    SH_ERROR_STALE = -108,       /**< The graph was captured under an older plan. Capture it again. */

    /* 2xx: memory and budget. Nothing has changed. */
    SH_ERROR_BUDGET = -201, /**< The budget is too small. The text names the smallest budget that works. */
    SH_ERROR_OUT_OF_DEVICE_MEMORY = -202, /**< The driver has no device memory left. */
    SH_ERROR_OUT_OF_HOST_MEMORY = -203,   /**< The process has no memory left. */
    SH_ERROR_HELD = -204, /**< Views hold the device memory that the call needs. The text names the block. */
    SH_ERROR_BUSY = -205, /**< A state that ends without help from the caller prevents the call. Try again later. */

    /* 3xx: an operation failed. The objects stay usable, and the call may be tried again. */
    SH_ERROR_SOURCE = -301,    /**< A source could not be read: the file is too short, an I/O error, and so on. */
    SH_ERROR_CALLBACK = -302,  /**< A callback of the caller returned an error. */
    SH_ERROR_IO = -303,        /**< A file or a socket of the library (trace, telemetry, control) failed. */
    SH_ERROR_CANCELLED = -304, /**< Another thread destroyed the object while the call waited. */
    SH_ERROR_CHECKSUM = -305,  /**< Bytes that came back differ from those that left: spill.h, sh_verify_block(). */

    /* 4xx: the backend or its driver. The text has the driver's name for the error. */
    SH_ERROR_BACKEND = -401,             /**< A call into the driver failed. */
    SH_ERROR_BACKEND_UNAVAILABLE = -402, /**< The backend cannot run here: there is no driver, or no device. */
    SH_ERROR_BACKEND_LOAD = -403, /**< The plugin could not be loaded. The text lists the files that were tried. */

    /* 5xx: an object cannot be used any more. Destroy it. */
    SH_ERROR_RUNTIME_LOST = -501, /**< A failure left the runtime's device memory in an unknown state. */
    SH_ERROR_DEVICE_LOST = -502,  /**< The driver reports that the device is gone. */

    /* 6xx: the library itself. */
    SH_ERROR_INTERNAL = -601,         /**< A defect of the library. Please report it with its text. */
    SH_ERROR_DUPLICATE_LIBRARY = -602 /**< Another copy of the library manages devices in this process. */
};

/**
 * A stream of the device: the driver's handle (CUstream, hipStream_t, or a handle from sh_stream_create()) as an
 * integer.
 *
 *  - 0 has the driver's meaning: on CUDA the legacy default stream. The backends "host" and "sim" have no stream 0.
 *  - 2 on CUDA and HIP is the calling thread's own default stream. Engines that were compiled for per-thread default
 *    streams pass 2, because their 0 would be taken for the legacy stream.
 *  - SH_STREAM_HOST is the calling thread itself.
 *
 * Streams and addresses on CUDA and HIP belong to the device's primary context, which the runtime interfaces of CUDA
 * and HIP use. An engine on the driver interface retains the primary context (cuDevicePrimaryCtxRetain()) and makes it
 * current.
 *
 * A stream must stay alive until the step that used it has ended, or until sh_stream_forget(). A runtime that finds a
 * stream destroyed cannot know whether its work still reads device memory. The runtime then returns the driver's error
 * once, and does not use that memory again.
 */
typedef uint64_t sh_stream;

/**
 * The calling thread as a stream. sh_acquire() returns when the bytes are there, and sh_release() means that the use
 * has ended.
 */
#define SH_STREAM_HOST 0xffffffffffffffff

/**
 * A block of one runtime. 0 is never a block. A runtime never uses an id twice. Two runtimes that exist at the same
 * time never share an id. A process has at most 65,535 runtimes at a time, a runtime at most 2^24 blocks, and fewer if
 * the addresses of the process are limited (RLIMIT_AS).
 */
typedef uint64_t sh_block;

typedef struct sh_device sh_device;   /**< One physical device and its budget: see device.h. */
typedef struct sh_runtime sh_runtime; /**< One model on a device: see runtime.h. */
typedef struct sh_scope sh_scope;     /**< Something that lasts until sh_scope_end(). */

/**
 * Ends a scope, on any thread. Scopes may end in any order. The handle is stale after the call, even after an error but
 * SH_ERROR_INVALID_STATE. NULL is ignored. The scope of a destroyed object has ended with it, and this call then only
 * frees the handle.
 * @retval SH_OK                  The scope has ended.
 * @retval SH_ERROR_INVALID_STATE A callback must not end it: see sh_occupancy_add_callbacks() and sh_control_start().
 *                                The scope goes on.
 * @retval SH_ERROR_IO            The file of a trace or of telemetry could not be written. It is closed.
 * @retval SH_ERROR_BACKEND       Dirty contents of a guest could not be written back: see sh_guest_begin().
 * @blocks While a guest's dirty contents are written back, while a file is completed, and until callbacks and threads
 *         of what ends have ended.
 * \since 0.1
 */
SH_API sh_status sh_scope_end(sh_scope* scope);

/** Returns the library's version at run time as major * 1,000,000 + minor * 1,000 + patch. @blocks Never. */
SH_API uint32_t sh_version(void);

/**
 * Returns a short name of a status, for example "SH_ERROR_BUDGET". The text is static and never NULL.
 * @blocks Never.
 */
SH_API const char* sh_status_string(sh_status status);

/**
 * Copies the text of the calling thread's last error into `buffer`, cut to `capacity` bytes including the NUL. `buffer`
 * may be NULL if `capacity` is 0. A call that returns SH_OK, SH_NOT_READY or SH_KEPT leaves the text as it is. A call
 * that returns nothing, for example sh_runtime_destroy(), may leave a text.
 * @return The length of the whole text in bytes without the NUL. 0 if this thread had no error.
 * @blocks Never.
 */
SH_API uint64_t sh_last_error(char* buffer, uint64_t capacity);

enum { SH_LOG_ERROR = 1, SH_LOG_WARNING = 2, SH_LOG_INFO = 3, SH_LOG_DEBUG = 4 };

/**
 * Receives one line of the log, without a newline. `message` is valid during the call. The library may call the
 * function on any thread, on several threads at once, and while it holds locks. The function must not call the library
 * and must not wait for long.
 */
typedef void (*sh_log_fn)(int32_t level, const char* message, void* user_data);

/**
 * Sets the receiver of the process's log and the highest level that it gets. The log is off by default, and if `log` is
 * NULL. The variable STAGEHAND_LOG=error|warning|info|debug sends lines to standard error until the first call of this
 * function. The previous receiver is not called any more after the return.
 * @param level SH_LOG_ERROR to SH_LOG_DEBUG. 0 switches the log off.
 * @retval SH_OK                     The receiver is set.
 * @retval SH_ERROR_INVALID_ARGUMENT `level` is not a level.
 * @blocks Until a call of the previous receiver has ended.
 */
SH_API SH_MUST_CHECK sh_status sh_set_log(int32_t level, sh_log_fn log, void* user_data);

#ifdef __cplusplus
}

/** A struct that the library writes: its struct_size is set, and all else is 0. */
template <class Struct>
Struct sh_sized() {
    Struct made = Struct();
    made.struct_size = uint32_t(sizeof(Struct));
    return made;
}
#endif

#endif
