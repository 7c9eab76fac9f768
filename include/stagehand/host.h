/*
 * Host memory: how the library uses it for a device, and pinned memory, into which an engine loads its weights so that
 * the device copies them from there without another copy. And streams for engines without streams of their own: on the
 * host backend, in the simulation, and for tools that run on any backend. An engine on a GPU passes the driver's
 * streams.
 */
#ifndef STAGEHAND_HOST_H
#define STAGEHAND_HOST_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Returns host memory of `bytes` bytes. `bytes` and the address are multiples of the system's page size. The library
 * pins the memory, unless SH_HOST_PINNED is set. The function returns NULL if the engine has no such memory. The
 * library then tries a smaller size for staging buffers, and other calls return SH_ERROR_OUT_OF_HOST_MEMORY. A call
 * returns SH_ERROR_CALLBACK if the address is not a multiple of the page size.
 *
 * The library calls the function on any thread, on several threads at once, and while it holds locks. The function must
 * not call the library, and must not wait for a lock that another thread holds during a call of the library.
 */
typedef void* (*sh_host_alloc_fn)(uint64_t bytes, void* user_data);
/**
 * Takes back memory that sh_host_alloc_fn returned. `bytes` is the size of that allocation. The rules of
 * sh_host_alloc_fn apply. The library does not return memory that the driver does not unpin, or that the device may
 * still use.
 */
typedef void (*sh_host_free_fn)(void* memory, uint64_t bytes, void* user_data);

enum {
    /** The library maps host memory with small pages. The library asks for huge pages if the flag is not set. */
    SH_HOST_SMALL_PAGES = 1,
    /** The memory of `host_alloc` is pinned for this device, each allocation by one registration. The library neither
        pins nor checks the memory. */
    SH_HOST_PINNED = 2
};
/** Host memory comes from any NUMA node. */
#define SH_HOST_NODE_ANY 0xffffffff

/** How the library uses host memory for a device: sh_device_options.host. */
typedef struct sh_host_options {
    uint32_t struct_size;
    uint32_t flags; /**< SH_HOST_* */
    /** 1 + the NUMA node that host memory comes from, or SH_HOST_NODE_ANY. 0: the node closest to the device, if the
        backend knows it. At most 1,024. The value is only advice to the system. The value has no effect if a tool such
        as numactl has chosen nodes, and none on memory of `alloc`. */
    uint32_t node;
    /** Worker threads that read unpinned sources, at most 64. 0: 2 to 12 threads, by the number of cores. */
    uint32_t staging_threads;
    /** Host memory that bytes of unpinned sources pass through, pinned if possible, at most 128 GiB. 0: by the backend
        and by the number of worker threads. */
    uint64_t staging_bytes;
    /** Processors that the staging threads run on, such as "0-7,16". The library logs a warning if the process may use
        none of them. The default of staging_threads does not follow the list. NULL: the processors of the thread that
        needs the first staging buffer. */
    const char* staging_cpus;
    /** The engine's allocator for the large host memory of this device: staging buffers, sh_host_alloc(), the pinned
        pool of spilled tensors, contents of released memory, copies of SH_BLOCK_PACK. The functions and user_data must
        stay valid until the device has closed: see sh_device_close(). NULL: the library maps memory. */
    sh_host_alloc_fn alloc;
    sh_host_free_fn free; /**< Required if `alloc` is set, or else NULL. */
    void* user_data;      /**< Passed to `alloc` and `free`. */
} sh_host_options;

#define SH_HOST_OPTIONS_INIT \
    { sizeof(sh_host_options), 0, 0, 0, 0, 0, 0, 0, 0 }
static inline void sh_host_options_init(sh_host_options* options) {
    const sh_host_options initial = SH_HOST_OPTIONS_INIT;
    *options = initial;
}

/**
 * Allocates `bytes` bytes of zeroed host memory and pins them for `device`. The memory begins at a page, has exactly
 * this size (it is not rounded to a power of two), and uses huge pages if the system has them. The call succeeds with
 * unpinned memory, sets `out_pinned` to 0 and logs a warning if the system refuses to pin the memory. Bytes of sources
 * in unpinned memory pass through the staging buffers.
 *
 * @param out_memory The caller owns the memory on success and frees it with sh_host_free() before the last
 *                   sh_device_close(). The closing device frees memory that the caller has not freed.
 * @param out_pinned 1: pinned. 0: not pinned. May be NULL.
 * @retval SH_OK                     The memory is allocated.
 * @retval SH_ERROR_INVALID_ARGUMENT `bytes` is 0.
 * @blocks While the system provides and pins the pages.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_host_alloc(sh_device* device, uint64_t bytes, void** out_memory,
                                             uint32_t* out_pinned);

/**
 * Frees memory of sh_host_alloc(). NULL is allowed. First unregister all blocks with sources in this memory, or destroy
 * their runtimes. The library does not check this, and a copy in flight would otherwise read freed memory.
 * @retval SH_OK                     The memory is freed.
 * @retval SH_ERROR_INVALID_ARGUMENT `memory` is not from sh_host_alloc() of this device.
 * @blocks While the system unpins the pages.
 * \since 0.1
 */
SH_API sh_status sh_host_free(sh_device* device, void* memory);

/**
 * Creates a stream: a queue whose work runs in order. On the host backend a stream is a thread.
 * @param out_stream The caller owns the stream on success and destroys it with sh_stream_destroy() before the last
 *                   sh_device_close().
 * @retval SH_OK            The stream exists.
 * @retval SH_ERROR_BACKEND The driver failed.
 * @blocks Never.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_stream_create(sh_device* device, sh_stream* out_stream);

/**
 * Waits for the stream's work and destroys the stream. Call sh_stream_forget() first if the current step used the
 * stream. SH_STREAM_HOST and values that are not streams of the device are ignored.
 * @blocks Until the stream's work has ended.
 * \since 0.1
 */
SH_API void sh_stream_destroy(sh_device* device, sh_stream stream);

/**
 * Waits until all work on the stream has ended.
 * @retval SH_OK                     The work has ended.
 * @retval SH_ERROR_INVALID_ARGUMENT `stream` is SH_STREAM_HOST.
 * @retval SH_ERROR_BACKEND          The driver or the work failed.
 * @blocks Until the stream's work has ended.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_stream_synchronize(sh_device* device, sh_stream stream);

/** A function that runs on a stream. The function must not call the library and must not throw. */
typedef void (*sh_stream_fn)(void* user_data);

/**
 * Queues a call of `fn` on the stream.
 * @param fn      May be NULL if only the time matters. The backend `sim` calls the function at once.
 * @param busy_ns The least time, in nanoseconds, for which the call keeps the stream busy. The backend `host` sleeps
 *                for the rest of this time after `fn` has returned. The backend `sim` advances its clock. A negative
 *                value counts as 0.
 * @retval SH_OK                     The call is queued.
 * @retval SH_ERROR_INVALID_ARGUMENT `stream` is SH_STREAM_HOST.
 * @retval SH_ERROR_UNSUPPORTED      The backend cannot run functions on a stream.
 * @retval SH_ERROR_BACKEND          The driver failed.
 * @blocks Never.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_stream_launch(sh_device* device, sh_stream stream, sh_stream_fn fn, void* user_data,
                                                int64_t busy_ns);

#ifdef __cplusplus
}
#endif

#endif
