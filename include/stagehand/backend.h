/*
 * The interface of device backends (SPI). A backend is a table of primitives without policy, compiled in or in a plugin
 * `stagehand-<name>.so` that exports sh_backend_query(). Engines do not need this header.
 *
 * Rules: every function may be called from any thread, several at once; a function that fails has changed nothing, returns a
 * negative sh_status, and leaves a text for last_error(). Addresses are device addresses as integers. Streams are native handles,
 * never SH_STREAM_HOST. "Optional" members may be NULL; all others are required.
 */
#ifndef STAGEHAND_BACKEND_H
#define STAGEHAND_BACKEND_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Version of this interface. A plugin is asked for the host's version and answers with a table of that version or refuses. */
#define SH_BACKEND_SPI_VERSION 1

typedef struct sh_backend_device sh_backend_device; /**< The backend's own. */
typedef uint64_t sh_backend_page;                   /**< A physical page; 0 is none. */
typedef uint64_t sh_backend_event;                  /**< An event; 0 is none. */

enum {
    SH_BACKEND_FIXED_ADDRESSES = 1,   /**< Memory is mapped by pages. Without it range_reserve() gives memory with the addresses, in one
                                           piece, and pages_* are SH_ERROR_UNSUPPORTED. */
    SH_BACKEND_HOST_ADDRESSABLE = 2,  /**< The host may touch device addresses. */
    SH_BACKEND_CONTENTLESS = 4,       /**< Nothing is really copied; sources must not be read, any pointer counts as pinned. */
    SH_BACKEND_VIRTUAL_TIME = 8,      /**< clock() is virtual; waits return at once. */
    SH_BACKEND_IS_GPU = 16
};

/** What a device is. Filled by device_open(). What cannot be is SH_ERROR_BACKEND of sh_device_open(), which names the field. */
typedef struct sh_backend_device_info {
    uint32_t struct_size;
    uint32_t flags;                 /**< SH_BACKEND_* */
    char description[128];
    uint64_t total_bytes;
    uint64_t granularity_bytes;     /**< Smallest page, a power of two up to 1 GiB; pages are multiples of it. */
    uint64_t largest_page_bytes;    /**< Pages beyond this size gain nothing; a power of two, at least granularity_bytes. */
    uint64_t staging_piece_bytes;   /**< Best size of a copy from the staging ring. */
    uint64_t link_bytes_per_second; /**< If it is known without measuring, 10^6 to 10^15; else 0. */
    uint64_t copy_latency_ns;       /**< Cost of a copy command beside its bytes; about; a minute at most. */
    uint32_t queue_depth;           /**< Commands that can be queued on a stream before a call waits on the host; about. */
    /** Handle that means another stream on each thread: its own default stream, which stream 0 waits for. 0: there is none. */
    uint32_t thread_stream;
} sh_backend_device_info;

struct sh_backend;

/** What the library offers to a backend. Valid for the life of the process. */
typedef struct sh_backend_host {
    uint32_t struct_size;
    uint32_t spi_version;
    void (*log)(int32_t level, const char *message);
    /** Finds (loads) another backend by its name, for one that wraps it. Not from within sh_backend_query(). A failure is logged. */
    sh_status (*find_backend)(const char *name, const struct sh_backend **out_backend);
} sh_backend_host;

/** The table. */
typedef struct sh_backend {
    uint32_t struct_size;
    uint32_t spi_version;
    const char *name;    /**< "cuda"; static. */
    const char *version; /**< Of the plugin; static. */

    /** Number of devices, without making a context. Unavailable: SH_ERROR_BACKEND_UNAVAILABLE, and last_error() says why. */
    sh_status (*probe)(uint32_t *out_device_count);
    /** Opens a device (retains its primary context, ...). `options` is "key=value;..." or NULL; unknown keys are an error. */
    sh_status (*device_open)(uint32_t index, const char *options, sh_backend_device **out_device, sh_backend_device_info *out_info);
    /** Closes a device, all of whose objects were destroyed. */
    void (*device_close)(sh_backend_device *device);
    /** Text of the calling thread's last failure, with the driver's name for it; valid until its next call. Never NULL. */
    const char *(*last_error)(void);
    /** Free and total device memory now, in bytes, as the driver tells it; never more free than there is. */
    sh_status (*memory_info)(sh_backend_device *device, uint64_t *out_free, uint64_t *out_total);

    /** Makes `count` physical pages of `page_bytes`, all or none. Consecutive ones should be neighbours where that helps mapping. */
    sh_status (*pages_create)(sh_backend_device *device, uint64_t page_bytes, uint64_t count, sh_backend_page *out_pages);
    /** Gives pages back; none of them is mapped. */
    sh_status (*pages_destroy)(sh_backend_device *device, uint64_t page_bytes, uint64_t count, const sh_backend_page *pages);
    /** Reserves addresses without memory; with it on devices without SH_BACKEND_FIXED_ADDRESSES, then aligned to 256 bytes at least. */
    sh_status (*range_reserve)(sh_backend_device *device, uint64_t bytes, uint64_t alignment, uint64_t *out_address);
    /** Gives addresses back; nothing is mapped there, or nothing uses the memory that came with them. Same arguments as reserved. */
    sh_status (*range_free)(sh_backend_device *device, uint64_t address, uint64_t bytes);
    /** Maps pages[i] at address + i * page_bytes, readable and writable by the device. A page may be mapped at several addresses. */
    sh_status (*pages_map)(sh_backend_device *device, uint64_t address, uint64_t page_bytes, uint64_t count,
                           const sh_backend_page *pages);
    /** Unmaps. The work that used these addresses has finished. */
    sh_status (*pages_unmap)(sh_backend_device *device, uint64_t address, uint64_t page_bytes, uint64_t count);

    /** Pins host memory for fast asynchronous copies. A refusal leaves no sticky error behind. */
    sh_status (*host_register)(sh_backend_device *device, void *memory, uint64_t bytes);
    sh_status (*host_unregister)(sh_backend_device *device, void *memory);
    /** 1 if the whole range is pinned (by host_register() or by anyone). */
    sh_status (*host_is_pinned)(sh_backend_device *device, const void *memory, uint64_t bytes, uint32_t *out_pinned);

    /** A stream that does not synchronise with the default stream. */
    sh_status (*stream_create)(sh_backend_device *device, sh_stream *out_stream);
    /** Destroys a stream whose work has finished. */
    sh_status (*stream_destroy)(sh_backend_device *device, sh_stream stream);
    sh_status (*stream_synchronize)(sh_backend_device *device, sh_stream stream);
    /** Later work of the stream waits for what the event stands for now. An event that was never recorded is no wait. */
    sh_status (*stream_wait_event)(sh_backend_device *device, sh_stream stream, sh_backend_event event);
    /** Runs fn(user_data) in the stream; see sh_stream_launch() for `busy_ns`. */
    sh_status (*stream_launch)(sh_backend_device *device, sh_stream stream, void (*fn)(void *), void *user_data, int64_t busy_ns);

    /** `timing` 1: event_elapsed() works on it. */
    sh_status (*event_create)(sh_backend_device *device, uint32_t timing, sh_backend_event *out_event);
    /** Destroys an event; waits on it that were queued stay valid. */
    sh_status (*event_destroy)(sh_backend_device *device, sh_backend_event event);
    sh_status (*event_record)(sh_backend_device *device, sh_backend_event event, sh_stream stream);
    /** 1 when everything before the last record has finished, or it was never recorded. An error of the work itself is returned. */
    sh_status (*event_query)(sh_backend_device *device, sh_backend_event event, uint32_t *out_done);
    sh_status (*event_synchronize)(sh_backend_device *device, sh_backend_event event);
    /** Time between two finished timing events, in nanoseconds; may be negative. */
    sh_status (*event_elapsed)(sh_backend_device *device, sh_backend_event begin, sh_backend_event end, int64_t *out_ns);

    /** Asynchronous copies, in stream order. Host memory that is not pinned may make the call wait. */
    sh_status (*copy_to_device)(sh_backend_device *device, sh_stream stream, uint64_t to, const void *from, uint64_t bytes);
    sh_status (*copy_to_host)(sh_backend_device *device, sh_stream stream, void *to, uint64_t from, uint64_t bytes);
    sh_status (*copy_on_device)(sh_backend_device *device, sh_stream stream, uint64_t to, uint64_t from, uint64_t bytes);
    /** Sets `bytes` bytes to `value`, in stream order. */
    sh_status (*fill)(sh_backend_device *device, sh_stream stream, uint64_t to, uint8_t value, uint64_t bytes);

    /** Nanoseconds, monotonic. Optional: the host's steady clock. */
    uint64_t (*clock)(sh_backend_device *device);
    /** Prepares a thread of the library for its first call (relaxed capture mode, ...). Optional. */
    sh_status (*thread_begin)(sh_backend_device *device);
    /** 1 if the stream takes part in a capture into a graph. Optional: the backend has no graphs. */
    sh_status (*stream_is_capturing)(sh_backend_device *device, sh_stream stream, uint32_t *out_capturing);
    /**
     * 1 if copy_on_device() may read all of the range: memory of this device, or of another one that this one has been let reach, which the
     * call sees to where it can. Optional: only what pages_map() and range_reserve() gave.
     */
    sh_status (*memory_is_reachable)(sh_backend_device *device, uint64_t address, uint64_t bytes, uint32_t *out_reachable);
} sh_backend;

/**
 * The one symbol of a plugin. `spi_version` is the version that the library wants; a plugin that cannot serve it returns
 * SH_ERROR_UNSUPPORTED. `host` stays valid. The table stays the plugin's and valid for the life of the process.
 */
typedef sh_status (*sh_backend_query_fn)(uint32_t spi_version, const sh_backend_host *host, const sh_backend **out_backend);

#ifdef __cplusplus
}
#endif

#endif
