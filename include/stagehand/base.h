/*
 * Status codes, error text, logging and the types that every other header uses.
 *
 * Rules that hold for the whole interface:
 *
 *  - Every struct starts with `uint32_t struct_size`. Set it to sizeof the struct, by its SH_..._INIT or sh_..._init().
 *    A zero field means the default. Structs only ever grow at the end; bytes beyond what the library knows must be zero.
 *    In an array of structs every element has the same struct_size, which is also the distance between elements.
 *  - Outputs come last and are written only on SH_OK, unless a comment says otherwise: with SH_NOT_READY there is no view.
 *  - A handle that is NULL, was destroyed, or belongs to something else gives SH_ERROR_INVALID_HANDLE, never a crash. Streams
 *    are the exception: they are handles of the driver, which need not notice that one is not valid.
 *  - A required pointer that is NULL, a flag that this library does not know, and a count beyond 2^32 give SH_ERROR_INVALID_ARGUMENT.
 *  - Not repeated in each comment: SH_ERROR_INVALID_STRUCT, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_ARGUMENT, SH_ERROR_FORKED,
 *    SH_ERROR_OUT_OF_HOST_MEMORY and SH_ERROR_INTERNAL may come from any call; and where SH_ERROR_BACKEND is listed, the driver may
 *    also say SH_ERROR_OUT_OF_DEVICE_MEMORY, SH_ERROR_UNSUPPORTED or SH_ERROR_DEVICE_LOST, and SH_ERROR_RUNTIME_LOST may follow.
 *  - Functions may be called from any thread unless their comment says otherwise. "Blocks" means that the calling thread
 *    may wait for the device, for a file or for a worker thread; functions that do not say so never wait for those.
 *  - Strings are UTF-8, NUL-terminated, and copied when they are kept.
 *  - The library never prints, never exits, never raises a signal, and lets no C++ exception out.
 *  - After fork() the child gets SH_ERROR_FORKED from every call that returns a status; calls that return nothing do nothing.
 */
#ifndef STAGEHAND_BASE_H
#define STAGEHAND_BASE_H

#include <stddef.h>
#include <stdint.h>

#include "version.h"

#ifndef SH_API
#define SH_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Result of a call. 0 is success, positive values are success with information, negative values are errors.
 * Values never change; new ones may be added, so treat unknown negative values as errors of their hundred.
 */
typedef int32_t sh_status;

enum {
    /* Success. */
    SH_OK = 0,
    /** The bytes are not on the device yet, and the caller asked not to wait. Nothing is held. */
    SH_NOT_READY = 1,

    /* 1xx: a mistake of the caller. Nothing has changed, unless the call's comment says otherwise. */
    SH_ERROR_INVALID_ARGUMENT = -101, /**< A value is out of range or contradicts another; the text names it. */
    SH_ERROR_INVALID_HANDLE = -102,   /**< NULL, destroyed, or belongs to another object. */
    SH_ERROR_INVALID_STRUCT = -103,   /**< struct_size is impossible, or bytes unknown to this library are not zero. */
    SH_ERROR_INVALID_STATE = -104,    /**< The call is not allowed now (a release without an acquire, ...). */
    SH_ERROR_NOT_FOUND = -105,        /**< No backend or device of that name. */
    SH_ERROR_UNSUPPORTED = -106,      /**< This backend cannot do it. */
    SH_ERROR_FORKED = -107,           /**< The process was forked after the library was used. */
    SH_ERROR_STALE = -108,            /**< A graph was captured under a plan that has changed since: capture it anew. */

    /* 2xx: memory and budget. Nothing has changed. */
    SH_ERROR_BUDGET = -201,               /**< The budget is too small; the text names the smallest that works. */
    SH_ERROR_OUT_OF_DEVICE_MEMORY = -202, /**< The driver has no memory left. */
    SH_ERROR_OUT_OF_HOST_MEMORY = -203,   /**< The process has no memory left. */
    SH_ERROR_HELD = -204,                 /**< The pages needed are held by views; the text names the holder. */
    SH_ERROR_BUSY = -205,                 /**< Something that is in use stands in the way. */

    /* 3xx: an operation failed. The objects stay usable, and the call may be tried again. */
    SH_ERROR_SOURCE = -301,   /**< A source could not be read (file too short, I/O error, ...). */
    SH_ERROR_CALLBACK = -302, /**< A callback of the caller returned an error. */
    SH_ERROR_IO = -303,       /**< A file of the library's own (trace, telemetry) could not be written. */
    SH_ERROR_CANCELLED = -304, /**< The object was destroyed while the call waited. */

    /* 4xx: the backend or its driver. The text carries the driver's name for the error. */
    SH_ERROR_BACKEND = -401,             /**< A call into the driver failed. */
    SH_ERROR_BACKEND_UNAVAILABLE = -402, /**< The backend is there but cannot run here (no driver, no device). */
    SH_ERROR_BACKEND_LOAD = -403,        /**< The plugin could not be loaded; the text lists what was tried. */

    /* 5xx: an object can no longer be used, only destroyed. */
    SH_ERROR_RUNTIME_LOST = -501, /**< A failure left the runtime's device memory in an unknown state. */
    SH_ERROR_DEVICE_LOST = -502,  /**< The driver reports that the device is gone. */

    /* 6xx: the library itself. */
    SH_ERROR_INTERNAL = -601, /**< A fault of the library: please report it with the text. */
    SH_ERROR_DUPLICATE_LIBRARY = -602 /**< Another copy of the library manages devices in this process. */
};

/**
 * A stream of the device: the native handle (CUstream, hipStream_t, a handle from sh_stream_create()) as an integer,
 * or SH_STREAM_HOST. 0 is what the driver means by it (CUDA: the legacy default stream); "host" and "sim" have no such stream. The
 * handle for each thread's own default stream (CUDA, HIP: 2) is the calling thread's, each thread's being a stream of its own; a release
 * there records an event at once. Engines that were compiled for such streams pass 2: their 0 would be taken for the legacy stream.
 * A stream must stay alive until the step in which it was used has ended, or sh_stream_forget(): a runtime that finds it gone
 * cannot tell what its work still reads; it returns the driver's error once, and does not use the device memory in question again.
 */
typedef uint64_t sh_stream;

/** The calling thread is the stream: sh_acquire() returns when the bytes are there, sh_release() means finished. */
#define SH_STREAM_HOST 0xffffffffffffffff

/** A block of one runtime. 0 is never a block. Ids are not reused while the runtime lives, nor shared between runtimes. */
typedef uint64_t sh_block;

typedef struct sh_device sh_device;   /**< One physical device and its budget: see device.h. */
typedef struct sh_runtime sh_runtime; /**< One model on a device: see runtime.h. */

/** Version of the library at run time as major * 1,000,000 + minor * 1,000 + patch. Never fails. */
SH_API uint32_t sh_version(void);

/** A short English name of a status, e.g. "SH_ERROR_BUDGET". Static; never NULL. */
SH_API const char *sh_status_string(sh_status status);

/**
 * Copies the text of the calling thread's last error, NUL-terminated and cut to `capacity`, into `buffer`.
 * Returns the full length in bytes without the NUL, 0 if there was no error on this thread. `buffer` may be NULL when
 * `capacity` is 0. Calls that return SH_OK or SH_NOT_READY leave the text as it is; those that return nothing, such as
 * sh_runtime_destroy(), may leave one.
 */
SH_API size_t sh_last_error(char *buffer, size_t capacity);

enum {
    SH_LOG_ERROR = 1,
    SH_LOG_WARNING = 2,
    SH_LOG_INFO = 3,
    SH_LOG_DEBUG = 4
};

/**
 * Receives a log line without a newline. It may be called on any thread, several at once, while locks of the library
 * are held: it must not call the library, and must not block for long. `message` is valid during the call.
 */
typedef void (*sh_log_fn)(int32_t level, const char *message, void *user_data);

/**
 * Sets the process's log receiver and the highest level that it gets; NULL switches logging off, the default.
 * (With the variable STAGEHAND_LOG=error|warning|info|debug, lines go to standard error until this is called.)
 * When it returns, the previous receiver is no longer called: it waits for a call that is under way.
 * @param level SH_LOG_ERROR to SH_LOG_DEBUG; 0 switches logging off too.
 * @return SH_OK, SH_ERROR_INVALID_ARGUMENT (level).
 */
SH_API sh_status sh_set_log(int32_t level, sh_log_fn log, void *user_data);

#ifdef __cplusplus
}
#endif

#endif
