/*
 * The interface of device backends (SPI). A backend is a table of primitives without policy. It is compiled into the
 * library, or is a plugin `stagehand-<name>.so` that exports sh_backend_query(). Engines do not need this header.
 *
 * Rules:
 *
 *  - Every function may be called from any thread, and from several at once.
 *  - A function that fails has changed nothing, returns a negative sh_status, and leaves a text for last_error().
 *  - Addresses are device addresses as integers. Streams are the driver's handles, never SH_STREAM_HOST.
 *  - A member marked "Optional" may be NULL. All other members are required.
 */
#ifndef STAGEHAND_BACKEND_H
#define STAGEHAND_BACKEND_H

#include "base.h"
#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Version of this interface. The library asks a plugin for this version. The plugin returns a table of this version, or
 * an error.
 */
#define SH_BACKEND_SPI_VERSION 1

typedef struct sh_backend_device sh_backend_device; /**< The backend's own struct. */
typedef uint64_t sh_backend_page;                   /**< A physical page. 0 is never a page. */
typedef uint64_t sh_backend_event;                  /**< An event. 0 is never an event. */

enum {
    /** The device maps memory by pages. Without this flag range_reserve() gives memory with the addresses, in one
        piece, and the pages_...() functions return SH_ERROR_UNSUPPORTED. */
    SH_BACKEND_FIXED_ADDRESSES = 1,
    SH_BACKEND_HOST_ADDRESSABLE = 2, /**< The host may read and write device addresses. */
    /** Copies move nothing. The library must not read sources, and every host pointer counts as pinned. */
    SH_BACKEND_CONTENTLESS = 4,
    SH_BACKEND_VIRTUAL_TIME = 8, /**< clock() is virtual, and waits return at once. */
    SH_BACKEND_IS_GPU = 16,      /**< The device is a GPU. */
    /** The backend's devices can help each other: stream_wait_event() takes the events of the other devices,
        copy_on_device() reads and writes their memory if memory_is_reachable() accepts it, and host_is_pinned() accepts
        memory that another device has pinned. \since 0.2 */
    SH_BACKEND_PEERS = 32
};

/**
 * Description of a device. device_open() fills in the fields. sh_device_open() returns SH_ERROR_BACKEND and names the
 * field if a value is impossible.
 */
typedef struct sh_backend_device_info {
    /** Before device_open(): the size that the library knows. The backend writes no byte beyond this size, and sets it
        to the size that it has written. */
    uint32_t struct_size;
    uint32_t flags;        /**< SH_BACKEND_* */
    char description[128]; /**< The driver's name for the device. */
    uint64_t total_bytes;  /**< Size of the device's memory. */
    uint64_t
        granularity_bytes; /**< Size of the smallest page: a power of two up to 1 GiB. All page sizes are multiples. */
    uint64_t largest_page_bytes;    /**< The largest useful page size: a power of two, at least granularity_bytes. */
    uint64_t staging_piece_bytes;   /**< The best size of a copy from the staging buffers. */
    uint64_t link_bytes_per_second; /**< Speed of the link, 10^6 to 10^15. 0: not known without measuring. */
    uint64_t copy_latency_ns;       /**< Rough cost of a copy command beside its bytes: at most a minute. */
    /** Rough number of commands on a stream before a further call makes the calling thread wait. */
    uint32_t queue_depth;
    /** Handle of the calling thread's own default stream, which stream 0 waits for. 0: there is no such handle. */
    uint32_t thread_stream;
    /** SH_DEVICE_KIND_* of device.h, or another DLDeviceType of DLPack. 0: other libraries cannot use the device's
        memory. */
    uint32_t kind;
    uint32_t reserved;
    /** The largest size for pages_create() that still makes mapping and unmapping faster: a power of two. Memory of
        sh_alloc() lies in such pages, and what is left in one of any multiple of largest_page_bytes or of 2 MiB, the
        smaller of them. 0: largest_page_bytes. \since 0.2 */
    uint64_t largest_handle_bytes;
    /** 1 + the NUMA node of the host that is closest to the device, at most 1,024. The library takes host memory for
        copies from it. 0: not known. \since 0.2 */
    uint64_t host_node;
    /** Address of the device on the system's PCI bus, such as "0000:17:00.0", as the system writes it. Empty: not
        known. \since 0.2 */
    char bus_id[32];
} sh_backend_device_info;

struct sh_backend;

/** A range of device memory. */
typedef struct sh_backend_range {
    uint64_t address;
    uint64_t bytes;
} sh_backend_range;

/** A hash of contents. */
typedef struct sh_backend_digest {
    uint64_t words[2];
} sh_backend_digest;

/** Formats of packed elements. \since 0.2 */
enum {
    SH_BACKEND_FORMAT_BF16 = 1,
    SH_BACKEND_FORMAT_F16 = 2,
    SH_BACKEND_FORMAT_F32 = 3,
    SH_BACKEND_FORMAT_F8_E4M3 = 4,
    SH_BACKEND_FORMAT_F8_E5M2 = 5
};

/** The most chunks of one unpack(), and the number of elements in every chunk but the last. \since 0.2 */
#define SH_BACKEND_UNPACK_CHUNKS 128
#define SH_BACKEND_CHUNK_ELEMENTS 262144

/** Packed elements in device memory. lib/codec/chunk.h describes them. \since 0.2 */
typedef struct sh_backend_packed {
    uint32_t struct_size;
    uint32_t format; /**< SH_BACKEND_FORMAT_* */
    uint64_t from;   /**< Address of the chunks, which follow each other: a multiple of 16. */
    uint64_t to;     /**< Address of the elements: a multiple of 16. */
    /** Address of 4 bytes, a multiple of 4. The backend writes 1 there if a chunk is damaged, and nothing otherwise. 0:
        the backend reports no damage. */
    uint64_t failed;
    uint64_t elements; /**< Number of elements in all chunks, at least 1. */
    uint32_t chunks;   /**< `elements` / SH_BACKEND_CHUNK_ELEMENTS, rounded up. At most SH_BACKEND_UNPACK_CHUNKS. */
    /** Offset of each chunk from `from`, in units of 16 bytes, ascending. The element after the last chunk's is the
        offset of the end. */
    uint32_t places[129];
} sh_backend_packed;

/** The number of elements in every tile but the last. \since 0.2 */
#define SH_BACKEND_TILE_ELEMENTS 8192

/** Elements in device memory, and their tiles in host memory. lib/codec/tile.h describes tiles, and
    lib/codec/tiles_apart.h where they lie: the body of each where its elements would lie, and its header of 16 bytes
    beside those of the others. \since 0.2 */
typedef struct sh_backend_tiles {
    uint32_t struct_size;
    uint32_t format;   /**< SH_BACKEND_FORMAT_* */
    uint64_t device;   /**< Address of the elements: a multiple of 16. */
    void* host;        /**< Pinned memory for the bodies, as many bytes as the elements have, filled up to a multiple of
                            16: a multiple of 16. */
    uint64_t elements; /**< At least 1. */
    void* headers;     /**< Pinned memory of 16 bytes for each 8,192 elements: a multiple of 16. */
} sh_backend_tiles;

/** What the library offers to a backend. Valid until the process ends. */
typedef struct sh_backend_host {
    uint32_t struct_size;
    uint32_t spi_version;
    void (*log)(int32_t level, const char* message); /**< Writes a line to the library's log. */
    /** Finds, and loads if necessary, another backend by its name, for a backend that wraps it. Must not be called
        inside sh_backend_query(). The library logs a failure. */
    sh_status (*find_backend)(const char* name, const struct sh_backend** out_backend);
} sh_backend_host;

/** The table of a backend's functions. */
typedef struct sh_backend {
    uint32_t struct_size;
    uint32_t spi_version;
    const char* name;    /**< "cuda", for example. Static. */
    const char* version; /**< Version of the plugin. Static. */

    /** Tells the number of devices, without making a context. Returns SH_ERROR_BACKEND_UNAVAILABLE if the backend
        cannot run here; last_error() has the reason. */
    sh_status (*probe)(uint32_t* out_device_count);
    /** Opens a device, and retains its primary context. `options` is "key=value;..." or NULL. An unknown key is an
        error. */
    sh_status (*device_open)(uint32_t index, const char* options, sh_backend_device** out_device,
                             sh_backend_device_info* out_info);
    /** Closes a device. All its objects were destroyed before. */
    void (*device_close)(sh_backend_device* device);
    /** Returns the text of the calling thread's last failure, with the driver's name for it. Valid until the thread's
        next call. Never NULL. */
    const char* (*last_error)(void);
    /** Tells the free and the total device memory in bytes, as the driver reports them. Free is at most total. */
    sh_status (*memory_info)(sh_backend_device* device, uint64_t* out_free, uint64_t* out_total);

    /** Creates `count` physical pages of `page_bytes`, all or none. Consecutive pages should be neighbours if that
        makes mapping faster. */
    sh_status (*pages_create)(sh_backend_device* device, uint64_t page_bytes, uint64_t count,
                              sh_backend_page* out_pages);
    /** Destroys pages. None of them is mapped. */
    sh_status (*pages_destroy)(sh_backend_device* device, uint64_t page_bytes, uint64_t count,
                               const sh_backend_page* pages);
    /** Reserves addresses without memory. The function also allocates the memory on devices without
        SH_BACKEND_FIXED_ADDRESSES, at an address that is a multiple of 256 at least. */
    sh_status (*range_reserve)(sh_backend_device* device, uint64_t bytes, uint64_t alignment, uint64_t* out_address);
    /** Frees addresses with the arguments of their reservation. Nothing is mapped there, and no work uses memory that
        came with them. */
    sh_status (*range_free)(sh_backend_device* device, uint64_t address, uint64_t bytes);
    /** Maps pages[i] at address + i * page_bytes, readable and writable by the device. A page may be mapped at several
        addresses. */
    sh_status (*pages_map)(sh_backend_device* device, uint64_t address, uint64_t page_bytes, uint64_t count,
                           const sh_backend_page* pages);
    /** Unmaps pages. Work that used these addresses has ended. */
    sh_status (*pages_unmap)(sh_backend_device* device, uint64_t address, uint64_t page_bytes, uint64_t count);

    /** Pins host memory for fast asynchronous copies. A refusal leaves no sticky error behind. */
    sh_status (*host_register)(sh_backend_device* device, void* memory, uint64_t bytes);
    /** Unpins memory of host_register(). */
    sh_status (*host_unregister)(sh_backend_device* device, void* memory);
    /** Sets `out_pinned` to 1 if the whole range is pinned, by host_register() or by anybody else, or else to 0. */
    sh_status (*host_is_pinned)(sh_backend_device* device, const void* memory, uint64_t bytes, uint32_t* out_pinned);

    /** Creates a stream that does not synchronize with the default stream. */
    sh_status (*stream_create)(sh_backend_device* device, sh_stream* out_stream);
    /** Destroys a stream whose work has ended. */
    sh_status (*stream_destroy)(sh_backend_device* device, sh_stream stream);
    /** Waits until the stream's work has ended. */
    sh_status (*stream_synchronize)(sh_backend_device* device, sh_stream stream);
    /** Makes later work of the stream wait for the last record of the event. There is no wait for an event that was
        never recorded. */
    sh_status (*stream_wait_event)(sh_backend_device* device, sh_stream stream, sh_backend_event event);
    /** Runs fn(user_data) on the stream. See sh_stream_launch() for `busy_ns`. */
    sh_status (*stream_launch)(sh_backend_device* device, sh_stream stream, void (*fn)(void*), void* user_data,
                               int64_t busy_ns);

    /** Creates an event. event_elapsed() works on the event if `timing` is 1. */
    sh_status (*event_create)(sh_backend_device* device, uint32_t timing, sh_backend_event* out_event);
    /** Destroys an event. Queued waits for the event stay valid. */
    sh_status (*event_destroy)(sh_backend_device* device, sh_backend_event event);
    /** Records the event after the work that is on the stream now. */
    sh_status (*event_record)(sh_backend_device* device, sh_backend_event event, sh_stream stream);
    /** Sets `out_done` to 1 if everything before the last record has ended, or if the event was never recorded. Returns
        the error of that work, if there was one. */
    sh_status (*event_query)(sh_backend_device* device, sh_backend_event event, uint32_t* out_done);
    /** Waits until everything before the last record has ended. */
    sh_status (*event_synchronize)(sh_backend_device* device, sh_backend_event event);
    /** Tells the time between two finished timing events, in nanoseconds. It may be negative. */
    sh_status (*event_elapsed)(sh_backend_device* device, sh_backend_event begin, sh_backend_event end,
                               int64_t* out_ns);

    /** Queues a copy from host memory. The call may wait if the memory is not pinned. */
    sh_status (*copy_to_device)(sh_backend_device* device, sh_stream stream, uint64_t to, const void* from,
                                uint64_t bytes);
    /** Queues a copy to host memory. The call may wait if the memory is not pinned. */
    sh_status (*copy_to_host)(sh_backend_device* device, sh_stream stream, void* to, uint64_t from, uint64_t bytes);
    /** Queues a copy inside the device, or from or to memory that memory_is_reachable() accepts. */
    sh_status (*copy_on_device)(sh_backend_device* device, sh_stream stream, uint64_t to, uint64_t from,
                                uint64_t bytes);
    /** Queues a fill of `bytes` bytes with `value`. */
    sh_status (*fill)(sh_backend_device* device, sh_stream stream, uint64_t to, uint8_t value, uint64_t bytes);

    /** Returns the device's monotonic clock, in nanoseconds. Optional: the library uses the host's steady clock
        instead. */
    uint64_t (*clock)(sh_backend_device* device);
    /** Prepares a thread of the library for its first call, for example with the relaxed capture mode. Optional. */
    sh_status (*thread_begin)(sh_backend_device* device);
    /** Sets `out_capturing` to 1 if the stream takes part in a capture into a graph. Optional: the backend has no
        graphs without it. */
    sh_status (*stream_is_capturing)(sh_backend_device* device, sh_stream stream, uint32_t* out_capturing);
    /** Sets `out_reachable` to 1 or 2 if copy_on_device() may read and write the whole range: memory of this device, or
        of another device that this one can access. The call enables that access if it can. 2: copies go straight, and
        not through the host. Optional: only memory of pages_map() and range_reserve() is reachable without it, and
        weights do not come over the links of other devices. */
    sh_status (*memory_is_reachable)(sh_backend_device* device, uint64_t address, uint64_t bytes,
                                     uint32_t* out_reachable);
    /** Waits until all work on the device that this process queued before the call has ended, on every stream.
        Optional: memory of sh_alloc() cannot be paused without it. */
    sh_status (*device_synchronize)(sh_backend_device* device);
    /** Hashes the contents of `count` ranges, and returns when the digests are written and all work of the stream has
        ended. Addresses are multiples of 16, and sizes are multiples of 4096. Ranges of the same size with different
        contents have the same digest with a probability of only about 2^-128. Optional: contents that have not changed
        are copied again without it. */
    sh_status (*contents_hash)(sh_backend_device* device, sh_stream stream, uint64_t count,
                               const sh_backend_range* ranges, sh_backend_digest* out_digests);
    /** Queues the unpacking of elements, also in a capture. `packed` is read during the call. Nothing beyond the chunks
        is read and nothing beyond the elements is written, whatever the chunks hold. Optional: the
        library's workers unpack without it. \since 0.2 */
    sh_status (*unpack)(sh_backend_device* device, sh_stream stream, const sh_backend_packed* packed);
    /** Queues the packing of elements into tiles in host memory, and the way back. `tiles` is read during the call.
        What crosses the link is packed. The way back reads nothing beyond the tiles and writes nothing beyond the
        elements, whatever the tiles hold, as long as nobody writes the tiles meanwhile. Optional, both or none: the
        library copies the elements without it. \since 0.2 */
    sh_status (*pack_tiles)(sh_backend_device* device, sh_stream stream, const sh_backend_tiles* tiles);
    sh_status (*unpack_tiles)(sh_backend_device* device, sh_stream stream, const sh_backend_tiles* tiles);
} sh_backend;

/**
 * The one symbol of a plugin.
 * @param spi_version The version that the library wants. A plugin that does not support this version returns
 *                    SH_ERROR_UNSUPPORTED.
 * @param host        Stays valid until the process ends.
 * @param out_backend The table belongs to the plugin and stays valid until the process ends.
 */
typedef sh_status (*sh_backend_query_fn)(uint32_t spi_version, const sh_backend_host* host,
                                         const sh_backend** out_backend);

#ifdef __cplusplus
}
#endif

#endif
