/*
 * Devices: one physical device, and the memory budget that all models on it share.
 */
#ifndef STAGEHAND_DEVICE_H
#define STAGEHAND_DEVICE_H

#include "base.h"
#include "helpers.h"
#include "host.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How sh_device_open() opens a device. */
typedef struct sh_device_options {
    uint32_t struct_size;
    uint32_t reserved; /**< 0. */
    /** The most device memory that the library holds, in bytes, cut to whole pages. 0: the free memory less
        margin_bytes. The budget may be larger than the device, up to UINT64_MAX. Plans then use the free memory less a
        reserve, which is a twentieth of the device and at most 512 MiB. */
    uint64_t budget_bytes;
    /** Memory that the automatic budget leaves free, in bytes. 0: 1 GiB, but at most a tenth of the device. */
    uint64_t margin_bytes;
    /** The unit of device memory: a power of two up to 1 GiB. 0: by the budget. Rounded up to the backend's
        granularity. */
    uint64_t page_bytes;
    /** Speed of the link to the device, as plans assume it: 10^6 to 10^15. 0: the library measures the speed when a
        plan needs it, and each runtime adjusts it to the speed that the copies of its steps show. This is the device's
        own link: plans add the speed of others that bring weights. */
    uint64_t link_bytes_per_second;
    /** Options of the backend, "key=value;key=value". NULL: none. docs/environment.md lists them. */
    const char* backend_options;
    /** Absolute path of the plugin to load the backend from. NULL: the library searches for the plugin. */
    const char* backend_path;
    /** Device memory that the engine lends to the library, which then takes none from the driver. The address is a
        multiple of 256. The memory must belong to this device, which the library does not check, and the engine's
        earlier work on it must have ended. The memory must stay valid, and the engine must not use it otherwise, until
        the device has closed. Budgets and margins count in this memory: the default budget leaves a tenth of it unused,
        but at most 1 GiB. The device has no SH_DEVICE_FIXED_ADDRESSES then, so addresses change with the plan, and
        sh_pause() returns SH_ERROR_UNSUPPORTED. Backends that always take memory in pages, such as sim, return
        SH_ERROR_UNSUPPORTED. NULL: none. \since 0.2 */
    void* device_memory;
    uint64_t device_memory_bytes;     /**< Size of device_memory. \since 0.2 */
    const sh_host_options* host;      /**< Host memory of the library. NULL: defaults. \since 0.2 */
    const sh_helper_options* helpers; /**< Other devices that bring weights. NULL: none. @experimental \since 0.2 */
} sh_device_options;

#define SH_DEVICE_OPTIONS_INIT \
    { sizeof(sh_device_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Fills `options` with SH_DEVICE_OPTIONS_INIT. The other sh_..._init() do the same for their structs. These functions
 * are compiled into the program, so that struct_size is the size that the program knows.
 */
static inline void sh_device_options_init(sh_device_options* options) {
    const sh_device_options initial = SH_DEVICE_OPTIONS_INIT;
    *options = initial;
}

/**
 * Opens a device by its name: "host", "cuda:0", "hip:1", "sim". A name without a number is the backend's first device.
 * "auto" is the first GPU that works, or the host if no GPU works.
 *
 * The call returns the same handle again, and counts it, if the device is open in this process already. All openings
 * share one budget. The budget, the page size and the helpers must then be 0, or equal to those in force. The other
 * options of a later opening are checked for their ranges and have no effect.
 *
 * @param options    NULL: defaults.
 * @param out_device The caller owns one reference on success, and returns it with sh_device_close().
 * @retval SH_OK                        The device is open.
 * @retval SH_ERROR_NOT_FOUND           There is no such backend, or no such device.
 * @retval SH_ERROR_BACKEND_UNAVAILABLE The backend cannot run here. The text has the reason.
 * @retval SH_ERROR_BACKEND_LOAD        The plugin could not be loaded.
 * @retval SH_ERROR_BUDGET              The budget is less than one page.
 * @retval SH_ERROR_INVALID_ARGUMENT    `name` is not "backend" or "backend:number", or an option is out of range or
 *                                      contradicts the open device, or `helpers` names a device that there is not, one
 *                                      of another backend, one twice, or the device itself. The text names the option.
 * @retval SH_ERROR_UNSUPPORTED         The backend cannot do what an option wants: `helpers`, `device_memory`.
 * @retval SH_ERROR_BACKEND             The driver failed, or the backend describes its device in an impossible way. The
 *                                      text names the field.
 * @retval SH_ERROR_DUPLICATE_LIBRARY   Another copy of the library manages devices in this process.
 * @blocks While it loads the driver and makes the first context.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_device_open(const char* name, const sh_device_options* options,
                                              sh_device** out_device);

/**
 * Returns one reference. The handle is stale after the last reference is returned, and the memory of sh_alloc() is
 * freed. The device then closes when nothing uses it any more: its runtimes and spillers, and runtimes of other devices
 * that it helps, are destroyed. Runtimes that still exist stay usable until then. Opening the device again gives a new
 * handle. The library frees memory of sh_host_alloc() and streams of sh_stream_create() when the device closes. NULL
 * and stale handles are ignored.
 * @blocks Until the device's work has ended.
 * \since 0.1
 */
SH_API void sh_device_close(sh_device* device);

/** Memory of a device at one moment, in bytes. */
typedef struct sh_memory_info {
    uint32_t struct_size;
    uint32_t runtime_count; /**< Runtimes on the device in this process. */
    uint64_t budget_bytes;  /**< The budget in force. It may be more than the device has. */
    /** Device memory that the library holds now. The value may be more than budget_bytes after the budget was lowered,
        until steps end and views are released. */
    uint64_t used_bytes;
    uint64_t peak_bytes;      /**< The highest used_bytes since the device was opened. */
    uint64_t free_bytes;      /**< Free memory of the device, as the driver reports it, or of device_memory. */
    uint64_t total_bytes;     /**< Size of the device's memory, or of device_memory. */
    uint64_t page_bytes;      /**< The unit of device memory. */
    uint64_t staging_bytes;   /**< Host memory that the library holds for staging. */
    uint64_t pinned_bytes;    /**< The pinned part of all host memory that the library holds, but for SH_BLOCK_PACK. */
    uint64_t reserved_bytes;  /**< Sum of the reservations in force: see residency.h. */
    uint64_t guest_bytes;     /**< Memory that guests were granted, with their workspaces. */
    uint64_t protected_bytes; /**< Kept memory: protected parts, and memory that their runtimes need to run. */
    /** The most that one more guest can get now: the budget less the memory that other runtimes keep for certain. A
        smaller amount replaces the budget if the device had less free memory when the library last asked. Memory that a
        destroyed runtime could not give back is not included. */
    uint64_t headroom_bytes;
} sh_memory_info;

/**
 * Reads the memory figures.
 * @retval SH_OK            The figures are written.
 * @retval SH_ERROR_BACKEND The driver failed.
 * @blocks Never. It asks the driver for the free memory.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_device_get_memory(sh_device* device, sh_memory_info* out_info);

/**
 * Changes the budget. A runtime shrinks or grows when its next step begins. A runtime that is not in a step, holds no
 * view and waits for nothing shrinks before the call returns. A runtime that holds a view does neither. Addresses of
 * blocks stay the same on devices with SH_DEVICE_FIXED_ADDRESSES.
 * @param budget_bytes In bytes. 0: the automatic budget.
 * @retval SH_OK            The budget is in force.
 * @retval SH_ERROR_BUDGET  The budget is less than a page, or less than the runtimes' smallest plans need together. The
 *                          text names the sum. Released runtimes and tags do not count. Nothing has changed.
 * @retval SH_ERROR_BACKEND The driver failed.
 * @blocks While runtimes write dirty contents back and give memory up.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_device_set_budget(sh_device* device, uint64_t budget_bytes);

enum {
    /** A block keeps its address for life, because the device maps memory by pages. Without this flag the address
        changes with the plan, but never while a view of the block is held. */
    SH_DEVICE_FIXED_ADDRESSES = 1,
    SH_DEVICE_HOST_ADDRESSABLE = 2, /**< The calling thread may read and write device memory through its address. */
    SH_DEVICE_VIRTUAL_TIME = 4,     /**< A simulation: it has a clock and sizes, but no contents. */
    SH_DEVICE_IS_GPU = 8            /**< The device is a GPU. */
};

/**
 * Kinds of device memory. The numbers are those of DLDeviceType in DLPack. A plugin may use any other number of
 * DLDeviceType.
 */
enum { SH_DEVICE_KIND_NONE = 0, SH_DEVICE_KIND_HOST = 1, SH_DEVICE_KIND_CUDA = 2, SH_DEVICE_KIND_ROCM = 10 };

/** Properties and abilities of a device. */
typedef struct sh_device_caps {
    uint32_t struct_size;
    uint32_t flags;               /**< SH_DEVICE_FIXED_ADDRESSES and the other flags. */
    uint32_t kind;                /**< SH_DEVICE_KIND_*. SH_DEVICE_KIND_NONE: other libraries cannot use its memory. */
    uint32_t ordinal;             /**< Number of the device among its backend's devices: 1 for "cuda:1". */
    char backend[32];             /**< Name of its backend: "cuda". */
    char name[64];                /**< The name that opens the device: "cuda:1". */
    char description[128];        /**< The driver's name for the device. */
    uint64_t granularity_bytes;   /**< Size of the smallest page. */
    uint64_t page_bytes;          /**< Size of the pages in use. */
    uint64_t staging_piece_bytes; /**< Size of the pieces in which bytes of unpinned sources move. */
    uint32_t staging_threads;     /**< Worker threads in use. */
    uint32_t reserved;
    /** 1 + the NUMA node that host memory comes from: the one of sh_host_options.node, else the node closest to
        the device. 0: not known. \since 0.2 */
    uint64_t host_node;
    /** Address on the system's PCI bus, such as "0000:17:00.0". Empty: not known. \since 0.2 */
    char bus_id[32];
} sh_device_caps;

/**
 * Reads the properties and abilities of the device.
 * @retval SH_OK The struct is written.
 * @blocks Never.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_device_get_caps(sh_device* device, sh_device_caps* out_caps);

/**
 * Reads the device's clock, in nanoseconds. The clock is monotonic. A simulation has a virtual clock.
 * @retval SH_OK The time is written.
 * @blocks Never.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_device_get_clock(sh_device* device, uint64_t* out_ns);

/** A backend that the library knows or has found. */
typedef struct sh_backend_info {
    uint32_t struct_size;
    int32_t status;        /**< SH_OK if the backend works, or else the error that keeps it from working. */
    uint32_t device_count; /**< Number of its devices. 0 if it does not work. */
    uint32_t built_in;     /**< 1: part of the library. 0: a plugin. */
    char name[32];         /**< "host", "cuda", and so on. */
    char path[512];   /**< File of the plugin, cut to fit. Empty if the backend is built in, or no file was found. */
    char reason[512]; /**< Reason why the backend does not work. Empty if it works. */
} sh_backend_info;

/**
 * Lists all backends: those built in, "cuda" and "hip", and every plugin that is found. Backends that do not work are
 * listed too.
 * @param infos     The first `capacity` backends are written here. Each element's struct_size must be set. May be NULL
 *                  if `capacity` is 0.
 * @param out_count The number of backends, which may be more than `capacity`.
 * @retval SH_OK The list is written.
 * @blocks While it loads plugins.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_backend_list(sh_backend_info* infos, uint64_t capacity, uint64_t* out_count);

#ifdef __cplusplus
}
#endif

#endif
