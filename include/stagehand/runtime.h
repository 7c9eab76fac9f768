/*
 * Runtimes: one model on a device, its blocks, their sources, and the order in which a step uses them.
 */
#ifndef STAGEHAND_RUNTIME_H
#define STAGEHAND_RUNTIME_H

#include "base.h"
#include "contents.h"
#include "source.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Creating a runtime. */

/** How sh_runtime_create() creates a runtime. */
typedef struct sh_runtime_options {
    uint32_t struct_size;
    /** Number of blocks of the order whose views are held at once. A block that is held twice counts once. 0: 1. More
        may be held if the plan has room. The acquire of one more block returns SH_ERROR_HELD if the plan has no room.
        Before the order is known, the plan has room for this number of the largest blocks. */
    uint32_t max_held;
    /** The most that the runtime gets of the device's budget, in bytes, cut to whole pages. 0: no limit. */
    uint64_t max_bytes;
    /** The least device memory for blocks outside the order, in bytes, rounded up to whole pages. The runtime needs
        this memory, and at least the memory of its largest such block, beside max_held blocks of the order. Planning
        returns SH_ERROR_BUDGET if the runtime's share has no room for this memory. Blocks outside the order get more
        memory only if the order has no use for the memory, and never more than they need together. 0: the library
        takes an eighth of the share, or more if the largest block or the memory that was held at once needs it.
        Beyond a call's members, sets get what others leave. */
    uint64_t unordered_bytes;
    /** How long, in nanoseconds, a call that plans waits for other runtimes to end the steps in which they hold memory
        beyond their shares. The call then returns SH_ERROR_BUSY. 0: the call does not wait. UINT64_MAX: without limit.
        This option is for models in several threads. The calling thread must not itself be in such a step, because the
        step cannot end while the thread waits. */
    uint64_t share_wait_ns;
    const char* name; /**< Names the runtime in messages and traces. NULL: "runtime <number>". */
} sh_runtime_options;

#define SH_RUNTIME_OPTIONS_INIT \
    { sizeof(sh_runtime_options), 0, 0, 0, 0, 0 }
static inline void sh_runtime_options_init(sh_runtime_options* options) {
    const sh_runtime_options initial = SH_RUNTIME_OPTIONS_INIT;
    *options = initial;
}

/**
 * Creates a runtime without blocks on a device. The runtime keeps the device open.
 * @param options     NULL: defaults.
 * @param out_runtime The caller owns the runtime on success and destroys it with sh_runtime_destroy().
 * @retval SH_OK            The runtime exists.
 * @retval SH_ERROR_BACKEND The driver failed.
 * @blocks Never, unless other devices bring weights (helpers.h). Then while it opens them and measures their
 *         links.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_runtime_create(sh_device* device, const sh_runtime_options* options,
                                                 sh_runtime** out_runtime);

/**
 * Waits for the runtime's copies, frees its device memory and addresses, and destroys the runtime with its blocks.
 * Views become invalid. Calls that wait in the runtime on other threads return SH_ERROR_CANCELLED. NULL and destroyed
 * runtimes are ignored.
 *
 * Before this call, the caller
 *  - calls sh_write_back() for all blocks, because the library does not write dirty blocks back here, or only some of
 *    them;
 *  - leaves the graphs that it entered;
 *  - ensures that work of its own that reads views has ended, or is queued on streams that the runtime has seen.
 *
 * Memory is lost if the driver cannot tell that work has ended, or refuses to take the memory back. Lost memory counts
 * as used, is not part of the headroom and belongs to no runtime. sh_last_error() then has a text.
 * @blocks Until the runtime's work on the device has ended, and while sh_pause() or sh_resume() releases or brings back
 *         runtimes of the device.
 * @threads Not from a callback of a runtime on the same device.
 * \since 0.1
 */
SH_API void sh_runtime_destroy(sh_runtime* runtime);

/**
 * Waits until every load and write-back that was begun has ended. The call returns the error of a load that failed
 * meanwhile, or of a write-back that no other call has returned yet. The library returns each such error once. The next
 * acquire of a block tries its load again. The call does not wait for loads that need a view to be released first, nor
 * for launches of graphs, whose streams the caller can synchronize. It does wait for launches that unpack weights.
 * @retval SH_OK             All have ended.
 * @retval SH_ERROR_SOURCE   A load failed.
 * @retval SH_ERROR_CALLBACK A load failed.
 * @retval SH_ERROR_BACKEND  The driver failed.
 * @blocks Until the copies have ended.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_runtime_synchronize(sh_runtime* runtime);

/* Blocks. */

enum {
    /** The engine changes the block on the device, and sh_mark_dirty() makes the library write it back. All segments
        must be SH_SOURCE_POINTER. */
    SH_BLOCK_MUTABLE = 1,
    /** The block is never partly resident, so that on_load gets the whole block at once. */
    SH_BLOCK_WHOLE = 2,
    /** The block is not part of the order of use, like an expert or a shard of an embedding. It is loaded when it is
        acquired, and stays on the device while there is room. */
    SH_BLOCK_UNORDERED = 4,
    /** The library pins the block's SH_SOURCE_POINTER memory while the block is registered. The library logs a warning
        and reads the memory unpinned if the system refuses. */
    SH_BLOCK_PIN = 8,
    /** @experimental The registration packs each segment that has a `format` into memory of the library, which is
        pinned if the system allows it. Weights of BF16 take about 0.70 of their bytes there. The contents come back
        exactly, bit for bit. The caller may free the memory of these segments when the registration has returned SH_OK.
        Segments without a format are read where they are. The library copies a segment as it is if packing saves less
        than 5 %, if the segment has 32 GiB or more, if it ends within an element, or if the device does not unpack. A
        warning in the log tells of a copy that the system does not pin: its block loads slowly, and graphs refuse it.
        sh_source_replace() takes new contents.

        One call needs memory for the copies of all its blocks, and for a work buffer of about the largest segment.
        Register a few blocks in a call, and free their memory after it, if the host has no room for all of both.

        With SH_BLOCK_MUTABLE the caller keeps the memory, and the library copies only segments that pack. Loads read
        the copies until the first write-back, sh_invalidate_blocks(), or update without sh_source_replace(). After that
        they read the caller's memory, plain, and the next plan frees the copies. sh_source_replace() packs again.
        Captures return SH_ERROR_UNSUPPORTED for the block, and for those that share its pages, until it was written
        back or loaded plain. \since 0.2 */
    SH_BLOCK_PACK = 16
};

/**
 * A contiguous range of a block's device memory that one load brought. The range begins at the block's first byte or at
 * the beginning of a page. It ends at the block's last byte or at the end of a page (sh_memory_info.page_bytes). A
 * boundary inside the block is therefore a multiple of the page if the block has two pages or more, or is
 * SH_BLOCK_UNORDERED. In a smaller block, which may share pages, it is a multiple of 256. Such a boundary may cut a
 * group of quantized values whose size does not divide the page: SH_BLOCK_WHOLE brings the whole block in one range.
 * Bytes without a segment are part of the range. Their contents are undefined, and the callback may write them.
 */
typedef struct sh_loaded_range {
    uint32_t struct_size;
    uint32_t reserved;
    sh_block block;
    void* address;        /**< Device address of the range, not of the block: a multiple of 256. */
    uint64_t offset;      /**< Offset of the range in the block. */
    uint64_t bytes;       /**< Length of the range. */
    uint64_t block_bytes; /**< Size of the whole block. */
    sh_stream stream; /**< The copy stream, never SH_STREAM_HOST. Work on it runs after the load and before any use. */
} sh_loaded_range;

/**
 * The library calls this function after it has queued a load, once for each load and each contiguous range. An engine
 * can use it to dequantize or patch the bytes exactly once after each load. To dequantize, register the block with its
 * expanded size and with SH_BLOCK_WHOLE, let the segment cover the end of the block, and expand the bytes on the copy
 * stream, from the beginning to the end. The block then takes its expanded size on the device and its packed size on
 * the link.
 *
 * `*range` is valid during the call only, so copy what queued work needs. The bytes may not be there yet: queue the
 * work on `range->stream`. The library calls the function on the thread that issues the load, which is the caller's or
 * a worker, and holds locks meanwhile. The function may call sh_stream_launch() and no other function of the
 * library.
 * @return 0 on success. Any other value fails the load with SH_ERROR_CALLBACK.
 */
typedef int32_t (*sh_load_fn)(const sh_loaded_range* range, void* user_data);

/** A block: bytes that are used together and move together. */
typedef struct sh_block_desc {
    uint32_t struct_size;
    uint32_t flags; /**< SH_BLOCK_* */
    /** Size on the device. It is at least 1, and not less than the end of the last segment. Bytes without a segment are
        undefined. */
    uint64_t bytes;
    const sh_segment* segments; /**< Copied. Segments must not overlap. */
    uint64_t segment_count;     /**< Number of segments. */
    sh_load_fn on_load;         /**< Called after each load. NULL: none. */
    void* user_data;            /**< Passed to `on_load`. */
    const char* name;           /**< Names the block in messages and traces. May be NULL. */
} sh_block_desc;

#define SH_BLOCK_DESC_INIT \
    { sizeof(sh_block_desc), 0, 0, 0, 0, 0, 0, 0 }
static inline void sh_block_desc_init(sh_block_desc* desc) {
    const sh_block_desc initial = SH_BLOCK_DESC_INIT;
    *desc = initial;
}

/**
 * Registers blocks, all or none. Each block gets a device address that is a multiple of 256. The address never changes
 * on devices with SH_DEVICE_FIXED_ADDRESSES. It changes with the plan on other devices.
 *
 * Blocks of less than two pages share pages with the blocks that were registered right before them, by the same call or
 * by earlier calls, as long as no block among them was used or has memory. Blocks that share pages are loaded together,
 * so register them in their order of use. Unordered blocks of less than a page share pages with each other only. The
 * blocks that share pages with a block cannot be loaded either between sh_source_update_begin() and
 * sh_source_update_end() of that block. Blocks that are registered in a step become part of the plan with the next
 * step.
 * @param out_blocks `count` ids, in the order of `descs`.
 * @retval SH_OK                     The blocks are registered.
 * @retval SH_ERROR_INVALID_ARGUMENT A description is wrong. The text names the block and the field.
 * @retval SH_ERROR_SOURCE           The index of a packed tensor cannot be read.
 * @retval SH_ERROR_BACKEND          The driver failed.
 * @blocks While it pins memory for SH_BLOCK_PIN, while it packs segments for SH_BLOCK_PACK (on up to 32 threads: 16
 *         shared processors packed about 3 GB a second), and while it reads the index of a packed tensor, or all of a
 *         packed tensor in pinned memory. Other calls go on while it packs.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_register_blocks(sh_runtime* runtime, const sh_block_desc* descs, uint64_t count,
                                                  sh_block* out_blocks);

/**
 * Unregisters blocks, all or none. The library writes dirty contents back, waits for the blocks' loads and for the work
 * on the runtime's streams, and frees their memory. The library neither reads nor writes their sources after the
 * return.
 * @retval SH_OK                  The blocks are unregistered.
 * @retval SH_ERROR_INVALID_STATE A view of a block is held, or a graph uses a block.
 * @retval SH_ERROR_BACKEND       The driver failed.
 * @blocks Until the loads, the write-backs and the work have ended.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_unregister_blocks(sh_runtime* runtime, const sh_block* blocks, uint64_t count);

enum {
    SH_BLOCK_UNLOADED = 0, /**< Some of its bytes are not on the device, and no load is under way. */
    SH_BLOCK_STAGED = 1,   /**< A worker reads the bytes of a load, or will read them. */
    SH_BLOCK_LOADING = 2,  /**< A load was issued to the device. */
    SH_BLOCK_READY = 3,    /**< All its bytes are on the device. */
    SH_BLOCK_DRAINING = 4  /**< Workers write the block back. */
};

/** State of a block at one moment. */
typedef struct sh_block_state {
    uint32_t struct_size;
    uint32_t flags; /**< SH_BLOCK_*, as registered. */
    uint32_t state; /**< SH_BLOCK_UNLOADED to SH_BLOCK_DRAINING. */
    uint32_t held;  /**< Number of views held now. */
    /** Its device address. There is memory behind it only while a view is held. NULL: the block has no address yet, on
        devices without SH_DEVICE_FIXED_ADDRESSES. */
    void* address;
    uint64_t bytes; /**< Size of the block. */
    uint64_t
        resident_bytes; /**< The part that the plan in force keeps on the device. 0 for blocks outside the order. */
    /** The part that shares memory and is loaded again in each step. 0 for blocks outside the order. */
    uint64_t streamed_bytes;
    uint64_t present_bytes; /**< The part whose contents are on the device now. */
    uint64_t serial;        /**< Grows with each load of any of the contents. */
    uint64_t protections;   /**< Number of protections of the block now. */
    char name[64];          /**< Cut to fit. */
} sh_block_state;

/**
 * Reads the state of a block. The runtime may be lost.
 * @retval SH_OK The state is written.
 * @blocks Never.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_block_get_state(sh_runtime* runtime, sh_block block, sh_block_state* out_state);

/* Order and plan. */

/** One use of a block in a step. */
typedef struct sh_use {
    uint32_t struct_size;
    uint32_t reserved; /**< Must be 0. */
    sh_block block;
    /** Time for which the device computes with the block, in nanoseconds. 0 for all uses: the library measures the
        times in one of the first steps, and again in some of the later ones. Times that the engine gives are not
        measured. */
    uint64_t compute_ns;
} sh_use;

#define SH_USE_INIT \
    { sizeof(sh_use), 0, 0, 0 }
static inline void sh_use_init(sh_use* use) {
    const sh_use initial = SH_USE_INIT;
    *use = initial;
}

/**
 * Sets the order in which a step uses the blocks. A block may occur several times, for example forward and backward.
 * The order is a hint for planning and prefetch: acquires are correct in any order. The library learns the order from
 * the first step, and again when the order changes, if this call is not made or `count` is 0. Blocks that do not occur
 * are treated as SH_BLOCK_UNORDERED. The plan for the order comes into force with the next sh_step_begin() without held
 * views, or with sh_plan().
 * @param uses Copied.
 * @retval SH_OK                     The order is set.
 * @retval SH_ERROR_INVALID_ARGUMENT A block that is SH_BLOCK_UNORDERED occurs.
 * @blocks Never.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_set_schedule(sh_runtime* runtime, const sh_use* uses, uint64_t count);

enum {
    /** The call only computes the plan. Nothing on the device changes. The first call for packed weights measures how
        fast the device unpacks, in free memory of the budget. */
    SH_PLAN_DRY_RUN = 1,
    /** Graphs that hold the old plan become stale if the plan has to change, and do not prevent the change: see
        graph.h. The flag takes effect when the next step begins if a step is under way. */
    SH_PLAN_DROP_GRAPHS = 2
};

/** Options of sh_plan(). */
typedef struct sh_plan_options {
    uint32_t struct_size;
    uint32_t flags; /**< SH_PLAN_* */
    /** With SH_PLAN_DRY_RUN: the memory to plan for, in bytes. 0: the device's whole budget, without other runtimes.
        The runtime's own share is sh_runtime_stats.share_bytes. This field has no effect without SH_PLAN_DRY_RUN. */
    uint64_t budget_bytes;
    /** With SH_PLAN_DRY_RUN: speed of all links together to plan for, 10^6 to 10^15. 0: the speed that the
        runtime's own plans assume. This field has no effect without SH_PLAN_DRY_RUN. */
    uint64_t link_bytes_per_second;
} sh_plan_options;

#define SH_PLAN_OPTIONS_INIT \
    { sizeof(sh_plan_options), 0, 0, 0 }
static inline void sh_plan_options_init(sh_plan_options* options) {
    const sh_plan_options initial = SH_PLAN_OPTIONS_INIT;
    *options = initial;
}

/**
 * A plan in figures. W stands for the bytes of all blocks in the order, M for the memory that is left for them, T for
 * the time of a steady step. docs/concepts.md derives the formulas.
 */
typedef struct sh_plan_info {
    uint32_t struct_size;
    uint32_t max_held;
    uint64_t model_bytes;           /**< Bytes of all registered blocks. */
    uint64_t budget_bytes;          /**< The share that the plan was made for: at most what all blocks need together. */
    uint64_t resident_bytes;        /**< Device memory of the resident parts, in whole pages. */
    uint64_t ring_bytes;            /**< Device memory that the streamed parts share. */
    uint64_t unordered_bytes;       /**< Device memory for blocks outside the order. */
    uint64_t smallest_budget_bytes; /**< The smallest share that a plan fits into. */
    sh_block smallest_budget_block; /**< The block that needs the most of the smallest share. */
    /** Bytes that a steady step brings to the device: only bytes with a segment. Those of packed tensors are counted
        unpacked. */
    uint64_t bytes_per_step;
    /** Bytes that every plan must copy in a cyclic order: W - M + delta*, or fewer if packed weights may stay. */
    uint64_t bound_bytes_per_step;
    uint64_t step_ns; /**< T, by the recurrence over the plan. */
    /** max(compute, (W - M) / link, reading). Reading is the time for bytes that do not fit and whose sources delivered
        them more slowly than the link in the last loads. Where the device unpacks, and packed weights may stay on it:
        max(compute, (cW - M) / link, (W - M) / unpacking). cW is what packing takes W to. */
    uint64_t bound_ns;
    /** Compute time of a step, given or measured. 0: not known yet. step_ns and bound_ns then assume that computing
        takes as long as the copies. */
    uint64_t compute_ns;
    /** Speed of all links together that the plan assumes. The part of the own link is as given, as measured
        when the device was first used, or as the copies of this runtime's steps have shown it since. */
    uint64_t link_bytes_per_second;
    uint64_t scheduled_blocks; /**< Number of different blocks in the order. */
    uint64_t resident_blocks;  /**< Blocks in the order that are wholly resident. */
    uint64_t streamed_blocks;  /**< Blocks in the order that are streamed, in part or whole. */
    /** Bytes in the pages of all registered blocks that no block covers. Blocks begin at pages unless they are packed:
        see docs/concepts.md. The resident and the streamed parts include their share of these bytes. */
    uint64_t padding_bytes;
    /** The least T of all plans, given that plans keep whole pages. The value is proven, and never less than bound_ns.
        It is bound_ns if the device unpacks. \since 0.2 */
    uint64_t plan_bound_ns;
    /** Device memory for packed weights that stay on the device and are unpacked for each use. It is beside
        resident_bytes, and the blocks count as streamed. \since 0.2 */
    uint64_t packed_resident_bytes;
    uint64_t unpack_bytes; /**< Device memory through which packed weights arrive. \since 0.2 */
    /** Speed, in bytes of contents, at which all of the device unpacks weights. It is measured once. 0: no block is
        packed, the device cannot unpack, or there was no memory to measure with. \since 0.2 */
    uint64_t unpack_bytes_per_second;
} sh_plan_info;

/**
 * Plans which parts stay on the device and which parts stream, and puts the plan into force: now if the runtime is not
 * in a step, or else when the next step begins. A runtime also plans by itself when it must. Use this call to get the
 * figures, or to plan before the first step. sh_block_get_state() then tells which part of each block stays and which
 * part streams.
 * @param options  NULL: defaults.
 * @param out_info May be NULL.
 * @retval SH_OK                  The plan is made.
 * @retval SH_ERROR_BUDGET        No plan fits. The text names the smallest budget and the block that needs the
 *                                most of it.
 * @retval SH_ERROR_INVALID_STATE No order is known yet, or the runtime is released: see sh_pause(). Or views are
 *                                held outside a step, or graphs hold the plan, unless SH_PLAN_DRY_RUN is set.
 * @retval SH_ERROR_BUSY          Other runtimes still hold part of this runtime's share: see sh_step_begin().
 * @retval SH_ERROR_BACKEND       The driver failed.
 * @blocks While it measures, plans, maps memory, and waits for sh_runtime_options.share_wait_ns.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_plan(sh_runtime* runtime, const sh_plan_options* options, sh_plan_info* out_info);

#ifdef __cplusplus
}
#endif

#endif
