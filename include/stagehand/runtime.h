/*
 * Runtimes: one model on a device. Its blocks, their sources, and the order in which they are used.
 */
#ifndef STAGEHAND_RUNTIME_H
#define STAGEHAND_RUNTIME_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How a runtime is created. */
typedef struct sh_runtime_options {
    uint32_t struct_size;
    /** Views of scheduled blocks held at once (a view held twice counts once); 0: 1. More may be held where the plan has room; where
        it has none, acquiring one more is SH_ERROR_HELD. Until the order is known, of all blocks: so many of the largest fit. */
    uint32_t max_held;
    uint64_t max_bytes;       /**< Ceiling on this runtime's share of the device's budget, in bytes, cut to whole pages; 0: none. */
    /** At least so much device memory for blocks outside the order, in bytes, rounded up to whole pages: a floor, no ceiling. It is part of
        what the runtime needs, like the largest such block and max_held blocks of the order: where its share has no room for that, planning is
        SH_ERROR_BUDGET. More is for them only where blocks of the order have no use for it, and never more than they are together. 0: by the
        largest one, by what was held at once, and up to an eighth of the share. */
    uint64_t unordered_bytes;
    const char *name;         /**< Names the runtime in messages and traces; NULL: "runtime <n>". */
    /** How long, in nanoseconds, a call that plans waits for what others hold beyond their shares until their steps end, before it returns
        SH_ERROR_BUSY; 0: not at all. For models that several threads use: a step that the waiting thread itself should end does not end. */
    uint64_t share_wait_ns;
} sh_runtime_options;

#define SH_RUNTIME_OPTIONS_INIT {sizeof(sh_runtime_options), 0, 0, 0, 0, 0}
SH_API void sh_runtime_options_init(sh_runtime_options *options);

/**
 * Creates a runtime without blocks on a device, which it keeps open.
 * @param options     NULL: defaults.
 * @param out_runtime On success owned by the caller, who destroys it by sh_runtime_destroy().
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_STRUCT, SH_ERROR_OUT_OF_HOST_MEMORY, SH_ERROR_BACKEND. \since 0.1
 */
SH_API sh_status sh_runtime_create(sh_device *device, const sh_runtime_options *options, sh_runtime **out_runtime);

/**
 * Waits for the runtime's work in flight, gives back its device memory and addresses, and destroys it with its blocks. Views
 * become invalid; calls that wait in it on other threads return SH_ERROR_CANCELLED. Dirty blocks are not written back, or only in
 * part: call sh_write_back() before. The engine's own work that reads views must be queued on streams that the runtime has seen, or
 * finished. A graph that was entered must have been left. NULL and destroyed runtimes are ignored. Where the driver cannot tell that work has ended, or
 * refuses memory back, that memory is lost: it counts as used, is no part of the headroom nor of anybody's share any more, and
 * sh_last_error() says so. Blocks. Must not be called from a callback of the runtime. \since 0.1
 */
SH_API void sh_runtime_destroy(sh_runtime *runtime);

/**
 * Waits until every load and write-back that was begun has finished, and returns the error of asynchronous work that no
 * other call has returned yet (each is returned once). Loads of parts that have to wait for a view's release are not waited for,
 * nor are launches of graphs: their streams can be synchronized.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_CANCELLED, SH_ERROR_RUNTIME_LOST; or the error of asynchronous work:
 *         SH_ERROR_SOURCE, SH_ERROR_CALLBACK, SH_ERROR_BACKEND. Blocks. \since 0.1
 */
SH_API sh_status sh_runtime_synchronize(sh_runtime *runtime);

/** Where a segment's bytes come from. */
enum {
    /** Memory of this process. Pinned memory (sh_host_alloc(), or pinned by the driver) is copied without a detour. */
    SH_SOURCE_POINTER = 1,
    /** A mapped file. It is read by calls that return an error, so a file that shrinks is SH_ERROR_SOURCE, not a signal. */
    SH_SOURCE_MAPPED = 2,
    /** A range of an open file: from the page cache where it is there, past it (direct) where not. That it is long enough is found out
        when it is read (SH_ERROR_SOURCE); that it is no file to read from, when the block is registered (SH_ERROR_INVALID_ARGUMENT). */
    SH_SOURCE_FILE = 3,
    /** A callback that writes into a staging buffer. */
    SH_SOURCE_FILL = 4,
    /** Memory of this device or of another one that its driver can copy from (a neighbour's: over their link, if they have one). Copied
        without a detour, and by a graph as well. Memory that cannot be reached is SH_ERROR_INVALID_ARGUMENT. \since 0.1 */
    SH_SOURCE_DEVICE = 5
};

/**
 * Produces `bytes` bytes of the segment, from `offset` (in the segment, not in the block) on, in `buffer`, which is valid during
 * the call. A segment is asked for in pieces, in any order, and again for each load. It is called on worker threads, several at
 * once for different ranges, and must not call the library. Returns 0 on success; any other value fails the load
 * (SH_ERROR_CALLBACK).
 */
typedef int32_t (*sh_fill_fn)(void *buffer, uint64_t offset, uint64_t bytes, void *user_data);

/** A range of a block and where its bytes come from. */
typedef struct sh_segment {
    uint32_t struct_size;
    uint32_t kind;        /**< SH_SOURCE_* */
    uint64_t offset;      /**< Where it begins in the block, in bytes. */
    uint64_t bytes;       /**< Its length; 0 is allowed. */
    void *pointer;        /**< POINTER, MAPPED, DEVICE: the bytes. Written only for mutable blocks. Must stay valid until the block is unregistered. */
    int64_t file;         /**< FILE: an open descriptor; the library keeps a duplicate, the caller may close it. */
    uint64_t file_offset; /**< FILE: where the bytes begin in the file. */
    sh_fill_fn fill;      /**< FILL. */
    void *user_data;      /**< For `fill`. */
} sh_segment;

#define SH_SEGMENT_INIT {sizeof(sh_segment), 0, 0, 0, 0, 0, 0, 0, 0}
SH_API void sh_segment_init(sh_segment *segment);

enum {
    /** The engine changes it on the device: sh_mark_dirty() has it written back. All segments must be SH_SOURCE_POINTER. */
    SH_BLOCK_MUTABLE = 1,
    /** Never partly resident: on_load sees the whole block at once. */
    SH_BLOCK_WHOLE = 2,
    /** Not part of the order of use (an expert, a row shard): loaded when acquired, kept while there is room. */
    SH_BLOCK_UNORDERED = 4,
    /** Pin its SH_SOURCE_POINTER memory while it is registered. If the system refuses, it is read unpinned, with a warning. */
    SH_BLOCK_PIN = 8
};

/**
 * A contiguous range of a block's device memory that was just loaded: what one load has brought without a gap. It begins at the block's first
 * byte or at the begin of a page, and ends at the block's last byte or at the end of a page (sh_memory_info.page_bytes). So `offset`, and where
 * it ends if that is not the block's end, are multiples of the page for a block of two pages or more, and for one that is
 * SH_BLOCK_UNORDERED; for a block that may share pages, of 256. A group of quantised values that is no divisor of that may be cut by it:
 * SH_BLOCK_WHOLE has the whole block in one range. Bytes that no segment covers are part of it: undefined, and the callback's to write.
 */
typedef struct sh_loaded_range {
    uint32_t struct_size;
    uint32_t reserved;
    sh_block block;
    void *address;        /**< Device address of the range, not of the block: a multiple of 256. */
    uint64_t offset;      /**< Where the range begins in the block. */
    uint64_t bytes;
    uint64_t block_bytes; /**< Size of the whole block. */
    sh_stream stream;     /**< The copy stream, never SH_STREAM_HOST: work queued on it runs after the load and before any use. */
} sh_loaded_range;

/**
 * Called after each load of a range has been queued, once per load and contiguous range, so that an engine can dequantise or
 * apply a patch exactly once per load. This is the place to dequantise: give the block the size of the expanded weights and SH_BLOCK_WHOLE, let
 * its segment cover the end of it, and expand that from the begin on, in the copy stream. It then takes its expanded size on the device and its
 * compressed size on the link.
 * `*range` is valid during the call only: copy what queued work needs. The bytes need not be there yet: queue the work on `range->stream`.
 * Called on the thread that issues the load: one of the engine's, or a worker. Locks of the library are held: of its functions it may call
 * sh_stream_launch() only. Returns 0; any other value fails the load (SH_ERROR_CALLBACK).
 */
typedef int32_t (*sh_load_fn)(const sh_loaded_range *range, void *user_data);

/** A block: what is used, and moves, together. */
typedef struct sh_block_desc {
    uint32_t struct_size;
    uint32_t flags;             /**< SH_BLOCK_* */
    uint64_t bytes;             /**< Size on the device, at least the end of the last segment. What no segment covers is undefined. */
    const sh_segment *segments; /**< Copied. They must not overlap. */
    uint64_t segment_count;
    sh_load_fn on_load;         /**< May be NULL. */
    void *user_data;            /**< For `on_load`. */
    const char *name;           /**< For messages and traces; may be NULL. */
} sh_block_desc;

#define SH_BLOCK_DESC_INIT {sizeof(sh_block_desc), 0, 0, 0, 0, 0, 0, 0}
SH_API void sh_block_desc_init(sh_block_desc *desc);

/**
 * Registers blocks, all or none. Each gets a device address, aligned to 256 bytes: for life, or with each plan where the device
 * cannot map memory by pages (SH_DEVICE_FIXED_ADDRESSES). Small blocks (less than two pages) share pages with those that were
 * registered right before them, by this call or by earlier ones, as long as nothing of those has been used or has memory; they are
 * loaded together, so register them in the order of use. Unordered blocks of less than a page share one with each other; larger
 * ones have pages of their own. While the source of a block is updated, those that share pages with it are not brought either.
 * Registered while a step runs, they are part of the plan from the next step on. Records of unregistered blocks are used again, ids are not.
 * @param out_blocks Ids of the blocks, `count` of them, in the order of `descs`.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_STRUCT, SH_ERROR_INVALID_ARGUMENT (names the block and the field),
 *         SH_ERROR_OUT_OF_HOST_MEMORY, SH_ERROR_BACKEND, SH_ERROR_RUNTIME_LOST. Blocks only to pin. \since 0.1
 */
SH_API sh_status sh_register_blocks(sh_runtime *runtime, const sh_block_desc *descs, uint64_t count, sh_block *out_blocks);

/**
 * Unregisters blocks, all or none: writes back what is dirty, waits for their loads, and for work on the streams of the runtime,
 * and gives back their memory. Sources are neither read nor written any more when it returns.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_BUSY (a view of a block is held), SH_ERROR_BACKEND, SH_ERROR_RUNTIME_LOST. Blocks. \since 0.1
 */
SH_API sh_status sh_unregister_blocks(sh_runtime *runtime, const sh_block *blocks, uint64_t count);

enum {
    SH_BLOCK_UNLOADED = 0, /**< Not all its bytes are on the device, and no load is under way. */
    SH_BLOCK_STAGED = 1,   /**< A load waits for, or is read by, a worker. */
    SH_BLOCK_LOADING = 2,  /**< A load was issued to the device. */
    SH_BLOCK_READY = 3,    /**< All its bytes are on the device. */
    SH_BLOCK_DRAINING = 4  /**< It is being written back. */
};

/** What is known of a block at one moment. */
typedef struct sh_block_state {
    uint32_t struct_size;
    uint32_t flags;          /**< As registered. */
    uint32_t state;          /**< SH_BLOCK_UNLOADED ... SH_BLOCK_DRAINING */
    uint32_t held;           /**< Views held now. */
    void *address;           /**< Its device address; memory is behind it only while a view is held. NULL: it has none yet, where
                                  addresses change (SH_DEVICE_FIXED_ADDRESSES). */
    uint64_t bytes;
    uint64_t resident_bytes; /**< Part that the plan in force keeps on the device; 0 for blocks outside the order. */
    uint64_t streamed_bytes; /**< Part that shares memory, and is loaded again when others used it; 0 likewise. */
    uint64_t present_bytes;  /**< Part whose contents are on the device now. */
    uint64_t serial;         /**< Grows each time any of its contents are loaded. */
    char name[64];           /**< Cut to fit. */
    uint64_t protections;    /**< Times that it is protected by sh_protect_blocks() now. */
} sh_block_state;

#define SH_BLOCK_STATE_INIT {sizeof(sh_block_state), 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, 0}
SH_API void sh_block_state_init(sh_block_state *state);

/** Reads the state of a block, also in a lost runtime. Returns SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_STRUCT. \since 0.1 */
SH_API sh_status sh_block_info(sh_runtime *runtime, sh_block block, sh_block_state *out_state);

/* Changing contents. */

/**
 * Marks the device contents of blocks as out of date: the next acquire loads them again. Views that are held keep what they
 * see; until they are released, an acquire of the same block, or of one that shares its pages, is SH_ERROR_HELD. What was marked
 * dirty and is not written back yet is lost. The sources must already hold the new bytes, or be changed between
 * sh_source_update_begin() and _end() instead.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_BACKEND, SH_ERROR_RUNTIME_LOST. \since 0.1
 */
SH_API sh_status sh_invalidate_blocks(sh_runtime *runtime, const sh_block *blocks, uint64_t count);

/**
 * Waits until no load reads the sources of these blocks and keeps new loads from starting; the caller may then change the
 * bytes. An acquire of such a block, or of one that shares its pages, fails with SH_ERROR_BUSY until sh_source_update_end(). Not
 * nested. Views may stay held. Dirty contents are written back before; until the end they cannot be marked dirty.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_STATE (begun already), SH_ERROR_BUSY (a view is held of what is dirty; a graph that
 *         uses one of the blocks has been entered and not left),
 *         SH_ERROR_BACKEND, SH_ERROR_RUNTIME_LOST. Blocks. \since 0.1
 */
SH_API sh_status sh_source_update_begin(sh_runtime *runtime, const sh_block *blocks, uint64_t count);

/**
 * Ends sh_source_update_begin() and invalidates the blocks.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_STATE (not begun); or SH_ERROR_BACKEND, where what is dirty of a block that shares
 *         their pages could not be written: it stays dirty, and the update has ended all the same. \since 0.1
 */
SH_API sh_status sh_source_update_end(sh_runtime *runtime, const sh_block *blocks, uint64_t count);

/**
 * Says that the engine has changed (or will, before it releases the view that it holds) the contents of a mutable block on the
 * device. They are written to the block's source before its memory is used for anything else, after the work of all streams that
 * used it; that may begin when the last view is released. The source may be written until sh_write_back() or
 * sh_unregister_blocks() returns. Each acquire after which contents are changed needs a mark of its own.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_STATE (not mutable, no view is held, or its source is being
 *         updated), SH_ERROR_RUNTIME_LOST. \since 0.1
 */
SH_API sh_status sh_mark_dirty(sh_runtime *runtime, sh_block block);

/**
 * Writes dirty contents of these blocks back to their sources and waits for it; `count` 0: of all. Blocks that are not dirty are
 * passed over.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_BUSY (a view of a dirty block is held; others may have been written), SH_ERROR_BACKEND,
 *         SH_ERROR_RUNTIME_LOST. Blocks. \since 0.1
 */
SH_API sh_status sh_write_back(sh_runtime *runtime, const sh_block *blocks, uint64_t count);

/* Order and plan. */

/** One use of a block in a step. */
typedef struct sh_use {
    uint32_t struct_size;
    uint32_t reserved;
    sh_block block;
    uint64_t compute_ns; /**< Time that the device computes with it; 0: measured. */
} sh_use;

#define SH_USE_INIT {sizeof(sh_use), 0, 0, 0}
SH_API void sh_use_init(sh_use *use);

/**
 * Tells the order in which a step uses the blocks; a block may occur several times (forward, then backward). It is a hint for
 * planning and prefetch: any order of acquires is correct. Without it, or after `count` 0, the order is learned from the
 * first step, and again when it changes. Blocks that do not occur are treated as SH_BLOCK_UNORDERED.
 * The plan for it is in force from the next sh_step_begin() (with no view held) or sh_plan() on. `uses` is copied.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_STRUCT, SH_ERROR_INVALID_ARGUMENT (an unordered block occurs),
 *         SH_ERROR_RUNTIME_LOST. \since 0.1
 */
SH_API sh_status sh_set_schedule(sh_runtime *runtime, const sh_use *uses, uint64_t count);

enum {
    SH_PLAN_DRY_RUN = 1,    /**< Compute the plan only: nothing on the device changes. */
    SH_PLAN_DROP_GRAPHS = 2 /**< If the plan has to change, graphs that hold it become stale instead of standing in the way; see graph.h.
                                 Asked for in a step: when the next one begins. */
};

/** What to plan for. */
typedef struct sh_plan_options {
    uint32_t struct_size;
    uint32_t flags;                 /**< SH_PLAN_* */
    uint64_t budget_bytes;          /**< With DRY_RUN: plan for this much; 0: all of the device's budget, other runtimes not counted (this
                                         one's part is sh_runtime_stats.share_bytes). Else not looked at. */
    uint64_t link_bytes_per_second; /**< With DRY_RUN: plan for this link, 10^6 to 10^15; 0: the device's. Else not looked at. */
} sh_plan_options;

#define SH_PLAN_OPTIONS_INIT {sizeof(sh_plan_options), 0, 0, 0}
SH_API void sh_plan_options_init(sh_plan_options *options);

/** A plan in figures. W is the bytes of all blocks in the order, M what is left for them, T the time of a steady step. */
typedef struct sh_plan_info {
    uint32_t struct_size;
    uint32_t max_held;
    uint64_t model_bytes;          /**< All registered blocks. */
    uint64_t budget_bytes;         /**< The share that the plan was made for: never more than all blocks together need. */
    uint64_t resident_bytes;       /**< Device memory of resident parts, in whole pages. */
    uint64_t ring_bytes;           /**< Device memory that streamed parts share. */
    uint64_t unordered_bytes;      /**< Device memory for blocks outside the order. */
    uint64_t smallest_budget_bytes; /**< With less than this no plan exists. */
    sh_block smallest_budget_block; /**< The block that asks for the most of it. */
    uint64_t bytes_per_step;       /**< What a steady step copies to the device: of a block only what its segments cover. */
    uint64_t bound_bytes_per_step; /**< What every policy must copy in a cyclic order: W - M + delta*, see docs/concepts.md. */
    uint64_t step_ns;              /**< T by the recurrence over the plan. */
    uint64_t bound_ns;             /**< max(compute, (W - M) / link). */
    uint64_t compute_ns;           /**< Of a step: given or measured. 0: neither yet; step_ns and bound_ns then assume as much as the copies. */
    uint64_t link_bytes_per_second;
    uint64_t scheduled_blocks;     /**< Different blocks in the order. */
    uint64_t resident_blocks;      /**< Of these, wholly resident. */
    uint64_t streamed_blocks;      /**< Of these, streamed in part or whole. */
    uint64_t padding_bytes;        /**< Of the pages of all registered blocks, what no block covers: blocks begin in pages of their own unless
                                        they are packed, see docs/concepts.md. Resident and streamed parts have their share of it. */
} sh_plan_info;

#define SH_PLAN_INFO_INIT {sizeof(sh_plan_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
SH_API void sh_plan_info_init(sh_plan_info *info);

/**
 * Plans what stays and what streams, and puts the plan into force: now if the runtime is not in a step, else when the next one
 * begins. A runtime plans by itself when it must; this is for asking, and for planning before the first step.
 * When the plan is in force, sh_block_info() tells each block's part.
 * @param options  NULL: defaults.
 * @param out_info May be NULL.
 * @return SH_OK; SH_ERROR_BUDGET (the text names the smallest budget and the block that asks for it); SH_ERROR_INVALID_STATE
 *         (no order is known yet); SH_ERROR_BUSY (views are held, outside a step and without SH_PLAN_DRY_RUN;
 *         graphs hold the plan, see graph.h; or others still hold its share, see sh_step_begin()); SH_ERROR_INVALID_STRUCT;
 *         SH_ERROR_INVALID_ARGUMENT (flags); SH_ERROR_OUT_OF_DEVICE_MEMORY; SH_ERROR_BACKEND; SH_ERROR_RUNTIME_LOST. Blocks. \since 0.1
 */
SH_API sh_status sh_plan(sh_runtime *runtime, const sh_plan_options *options, sh_plan_info *out_info);

#ifdef __cplusplus
}
#endif

#endif
