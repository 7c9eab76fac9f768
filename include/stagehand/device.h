/*
 * Devices: one physical device, and the memory budget that everything on it shares.
 */
#ifndef STAGEHAND_DEVICE_H
#define STAGEHAND_DEVICE_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How a device is opened. */
typedef struct sh_device_options {
    uint32_t struct_size;
    uint32_t staging_threads;       /**< Worker threads that read sources which are not pinned, at most 64; 0: by the number of cores, 2 to 12. */
    /** Ceiling on device memory, page rounding included, in bytes; cut to whole pages. 0: what is free less the margin. It may be more than
        the device has, up to UINT64_MAX: plans then use what is free, but for a twentieth of the device (at most 512 MiB). */
    uint64_t budget_bytes;
    uint64_t margin_bytes;          /**< Left free by the automatic budget; 0: 1 GiB, at most a tenth of the device. */
    uint64_t page_bytes;            /**< Unit of device memory, a power of two up to 1 GiB; 0: by the budget. Rounded up to the backend's
                                         granularity. */
    uint64_t link_bytes_per_second; /**< Host-to-device speed that plans count with, 10^6 to 10^15; 0: measured when first needed. */
    uint64_t staging_bytes;         /**< Host memory, pinned if possible, that such sources pass through, at most 128 GiB; 0: by the backend
                                         and the threads. */
    const char *backend_options;    /**< Options of the backend, "key=value;key=value"; NULL: none. See docs/environment.md. */
    const char *backend_path;       /**< Load the backend from this absolute path instead of searching; NULL: search. */
} sh_device_options;

#define SH_DEVICE_OPTIONS_INIT {sizeof(sh_device_options), 0, 0, 0, 0, 0, 0, 0, 0}

/** Fills `options` with SH_DEVICE_OPTIONS_INIT. `options` must not be NULL. The other sh_..._init() do the same for their structs. */
SH_API void sh_device_options_init(sh_device_options *options);

/**
 * Opens a device by name: "host", "cuda:0", "hip:1", "sim"; without a number the first; "auto" is the first GPU that
 * works, else the host.
 *
 * Opening a device that is open in this process gives the same device, counted: one budget for all. The options are then
 * compared: another budget (unless 0) or page size (unless 0) is SH_ERROR_INVALID_ARGUMENT. All other options are those of the
 * first opening, and are not compared; that each is in its range is checked every time.
 *
 * @param options    NULL: defaults.
 * @param out_device On success the caller owns one reference and gives it back by sh_device_close().
 * @return SH_OK; SH_ERROR_NOT_FOUND (no such backend or device); SH_ERROR_BACKEND_UNAVAILABLE (with the reason);
 *         SH_ERROR_BACKEND_LOAD; SH_ERROR_BUDGET (less than one page); SH_ERROR_INVALID_ARGUMENT (a name that is not "backend" or
 *         "backend:number", an option, named, that is out of range or contradicts); SH_ERROR_INVALID_STRUCT; SH_ERROR_BACKEND (also
 *         of a backend that says of its device what cannot be: the text names the field); SH_ERROR_DUPLICATE_LIBRARY.
 * Blocks (it may load a driver). \since 0.1
 */
SH_API sh_status sh_device_open(const char *name, const sh_device_options *options, sh_device **out_device);

/**
 * Gives back one reference. With the last one the device closes, once its runtimes are destroyed: destroy them first, or
 * they stay usable and the device closes with the last of them. The handle is stale from the last reference on, even then;
 * opening the device again gives a new one. Memory of sh_host_alloc() and streams of sh_stream_create() that are left go with the
 * device. NULL and stale handles are ignored. Blocks. \since 0.1
 */
SH_API void sh_device_close(sh_device *device);

/** Memory of a device, in bytes, at one moment. */
typedef struct sh_memory_info {
    uint32_t struct_size;
    uint32_t runtime_count;  /**< Runtimes that live on the device in this process. */
    uint64_t budget_bytes;   /**< The ceiling in force, which may be more than there is. */
    uint64_t used_bytes;     /**< Held by the library now. Above budget_bytes only while a lowered budget waits for a step or a view to end. */
    uint64_t peak_bytes;     /**< Highest used_bytes since the device was opened. */
    uint64_t free_bytes;     /**< What the driver says is free, for anybody. */
    uint64_t total_bytes;    /**< Size of the device. */
    uint64_t page_bytes;     /**< The unit of device memory. */
    uint64_t staging_bytes;  /**< Host memory held for staging. */
    uint64_t pinned_bytes;   /**< Part of the host memory held by the library that is pinned. */
    uint64_t reserved_bytes; /**< Claimed by reservations in force, see residency.h. */
    uint64_t guest_bytes;    /**< Claimed by guests, their workspace included. */
    uint64_t protected_bytes; /**< Kept from others: protected parts, and what their runtimes need to run. */
    uint64_t headroom_bytes; /**< What one more guest could get: of the budget, as far as memory was free when it was looked at last, less what is certain for
                                  others. Memory that a destroyed runtime could not give back is no part of it. */
} sh_memory_info;

#define SH_MEMORY_INFO_INIT {sizeof(sh_memory_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
SH_API void sh_memory_info_init(sh_memory_info *info);

/** Reads the memory figures. Asks the driver. Returns SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_STRUCT, SH_ERROR_BACKEND. \since 0.1 */
SH_API sh_status sh_device_memory(sh_device *device, sh_memory_info *out_info);

/**
 * Changes the budget; 0 is the automatic one. Runtimes shrink or grow when their next step begins; runtimes that are not in
 * a step, hold no view and wait for nothing shrink before this returns. While a view is held a runtime does neither. Addresses stay
 * on devices with SH_DEVICE_FIXED_ADDRESSES.
 * @return SH_OK; SH_ERROR_INVALID_HANDLE; SH_ERROR_BUDGET when it is less than a page, or the runtimes' smallest plans need more: the
 *         text names the sum and nothing changes; SH_ERROR_BACKEND. Blocks. \since 0.1
 */
SH_API sh_status sh_device_set_budget(sh_device *device, uint64_t budget_bytes);

enum {
    SH_DEVICE_FIXED_ADDRESSES = 1,  /**< Blocks keep their address for life (the device maps memory by pages). Else it changes with
                                         the plan, never while a view is held. */
    SH_DEVICE_HOST_ADDRESSABLE = 2, /**< The calling thread may read and write views through their address. */
    SH_DEVICE_VIRTUAL_TIME = 4,     /**< A simulation: it has a clock and sizes, but no contents. */
    SH_DEVICE_IS_GPU = 8
};

/** What a device is and can do. */
typedef struct sh_device_caps {
    uint32_t struct_size;
    uint32_t flags;               /**< SH_DEVICE_* */
    char name[64];                /**< The name that opens it, e.g. "cuda:0". */
    char description[128];        /**< The driver's name for it. */
    uint64_t granularity_bytes;   /**< Smallest page. */
    uint64_t page_bytes;          /**< Page in use. */
    uint64_t staging_piece_bytes; /**< Size in which sources that are not pinned are moved. */
    uint32_t staging_threads;
    uint32_t reserved;
} sh_device_caps;

#define SH_DEVICE_CAPS_INIT {sizeof(sh_device_caps), 0, {0}, {0}, 0, 0, 0, 0, 0}
SH_API void sh_device_caps_init(sh_device_caps *caps);

/** Reads the capabilities. Returns SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_STRUCT. \since 0.1 */
SH_API sh_status sh_device_capabilities(sh_device *device, sh_device_caps *out_caps);

/** The device's clock in nanoseconds: monotonic; the virtual clock of a simulation. Returns SH_OK, SH_ERROR_INVALID_HANDLE. \since 0.1 */
SH_API sh_status sh_device_clock(sh_device *device, uint64_t *out_ns);

/** A backend that was found, or was looked for in vain. */
typedef struct sh_backend_info {
    uint32_t struct_size;
    int32_t status;         /**< SH_OK: it works; else why not (SH_ERROR_BACKEND_UNAVAILABLE, SH_ERROR_BACKEND_LOAD, ...). */
    uint32_t device_count;  /**< Devices that it has; 0 unless status is SH_OK. */
    uint32_t built_in;      /**< 1: part of the library; 0: a plugin. */
    char name[32];          /**< "host", "cuda", ... */
    char path[512];         /**< File of the plugin; empty when built in or not found. */
    char reason[512];       /**< Why it does not work, in words; empty when it does. */
} sh_backend_info;

#define SH_BACKEND_INFO_INIT {sizeof(sh_backend_info), 0, 0, 0, {0}, {0}, {0}}
SH_API void sh_backend_info_init(sh_backend_info *info);

/**
 * Lists the backends, working or not: those built in, "cuda" and "hip", and every plugin that is found. Writes the first
 * `capacity` of them (each element's struct_size must be set) and the number that there are, which may be more, to `out_count`.
 * `infos` may be NULL when `capacity` is 0.
 * @return SH_OK, SH_ERROR_INVALID_ARGUMENT, SH_ERROR_INVALID_STRUCT. Blocks (it loads plugins). \since 0.1
 */
SH_API sh_status sh_backend_list(sh_backend_info *infos, size_t capacity, size_t *out_count);

#ifdef __cplusplus
}
#endif

#endif
