/*
 * Residency: which models keep their device memory when several share a device. Protection, reservations, guests, and giving memory
 * back on request.
 *
 * Every runtime has a share of its device's budget. Shares are divided anew when a runtime comes, goes or changes, and when runtimes
 * are used more or less often than before: memory goes where it saves most time. A runtime whose share becomes smaller gives memory
 * up between its steps, while it holds no view. What is said here holds back that division:
 *
 *   protected   What a block has on the device stays there. Counted; see sh_protect_blocks() and sh_keep_resident().
 *   reserved    A runtime's share never falls below so many bytes; see sh_reserve().
 *   guest       A runtime gets so many bytes, out of what nobody has reserved, until its scope ends; see sh_guest_begin().
 *
 * That a block's streamed part, or blocks outside the order, take turns in the memory that their own runtime keeps is not eviction, and
 * goes on under all three (but for blocks outside the order that are protected one by one). Shares are not fair: equal models need not
 * get equal ones; reserve where that matters. Sizes of one runtime overlap: the largest of what it needs, has protected, reserved or was let
 * in with counts, so sums over sh_memory_info's fields say nothing; headroom_bytes is the one to ask.
 */
#ifndef STAGEHAND_RESIDENCY_H
#define STAGEHAND_RESIDENCY_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Protects blocks, all or none, once more each: what they have in resident parts, or in memory for blocks outside the order, is not
 * given up, neither to other runtimes nor to other blocks of this one, until sh_unprotect_blocks() was called as often. Plans that are
 * made meanwhile put protected blocks on the device first, whole as long as the runtime's share has room: nothing is taken from others for
 * it, so sh_reserve() first. Of blocks outside the order leave room for the largest other one, else its acquire is SH_ERROR_HELD.
 * Unregistering a block, an engine's own sh_invalidate_blocks(), and a new order that needs the room itself, are not held back. A block may
 * occur more than once.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE. \since 0.1
 */
SH_API sh_status sh_protect_blocks(sh_runtime *runtime, const sh_block *blocks, uint64_t count);

/** Ends sh_protect_blocks(), once each, all or none. Returns SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_STATE (one is not protected
    as often as that; the text names it). \since 0.1 */
SH_API sh_status sh_unprotect_blocks(sh_runtime *runtime, const sh_block *blocks, uint64_t count);

/** Something that is in force until sh_scope_end(). */
typedef struct sh_scope sh_scope;

/**
 * Begins a scope in which a runtime keeps the device memory that it has: it is not taken for other runtimes, whatever they need, and
 * its plans keep what is resident, as long as its own order leaves room for that. Scopes nest and are counted. A target without blocks is a
 * warning in the log.
 * @param runtime   Names the device, no more: any runtime of it; the one itself if `target` is NULL.
 * @param target    Whose memory is kept; a runtime of the same device. NULL: `runtime`.
 * @param out_scope On success ended by the caller, by sh_scope_end(), on any thread.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_INVALID_ARGUMENT (not on the same device). \since 0.1
 */
SH_API sh_status sh_keep_resident(sh_runtime *runtime, sh_runtime *target, sh_scope **out_scope);

/** What is given up when a primary reservation, a runtime that begins, or a lowered budget cannot have its memory otherwise; never for a guest. */
enum {
    SH_PRIORITY_PRIMARY = 0,  /**< Never given up while it is reserved. */
    SH_PRIORITY_SECONDARY = 1 /**< Given up when nothing else is left, with a warning, that of the runtime used furthest in the future
                                   first (the one not used for longest, where it has made no steps); in force again when there is room. */
};

/**
 * Reserves device memory for a runtime: its share is never less than this, and neither others nor guests get any of it, also when it has
 * no use for it. It has one reservation at most; another call replaces its size and priority. What it does not hold yet it gets as others
 * give it up: at once if they are between steps, else at their steps' edges.
 * @param runtime  Names the device, no more: any runtime of it; the one itself if `target` is NULL.
 * @param target   Whose share it is; a runtime of the same device. NULL: `runtime`. The reservation ends with it.
 * @param bytes    Rounded up to whole pages, and cut to the target's sh_runtime_options.max_bytes, as it never
 *                 takes more. 0: as much as the target's plan uses (residents, ring, memory for blocks outside the
 *                 order), which is made now if there is none: all that is worth having, so leave room for guests by
 *                 sh_runtime_options.max_bytes, or say how many.
 * @param priority SH_PRIORITY_*
 * @return SH_OK; SH_ERROR_INVALID_HANDLE; SH_ERROR_INVALID_ARGUMENT (not on the same device, priority); SH_ERROR_BUDGET (it does
 *         not fit beside what is reserved, protected, lent to guests, and what other runtimes need to run: the text names the figures; the
 *         earlier reservation stays); SH_ERROR_INVALID_STATE (`bytes` 0, and no order is known to plan by); with `bytes` 0 also the
 *         errors of sh_plan(). Blocks. Not from a thread that is inside a callback of the library. \since 0.1
 */
SH_API sh_status sh_reserve(sh_runtime *runtime, sh_runtime *target, uint64_t bytes, uint32_t priority);

/** Ends the target's reservation; nothing happens when it has none. NULL: of `runtime`. Returns SH_OK, SH_ERROR_INVALID_HANDLE,
    SH_ERROR_INVALID_ARGUMENT (not on the same device). \since 0.1 */
SH_API sh_status sh_release_reservation(sh_runtime *runtime, sh_runtime *target);

enum {
    /** If there is less than `bytes`, let it in with what there is, as long as its smallest plan fits. */
    SH_GUEST_SHRINK = 1
};

/** How a guest is let in. */
typedef struct sh_guest_options {
    uint32_t struct_size;
    uint32_t flags;           /**< SH_GUEST_* */
    uint64_t bytes;           /**< Device memory for its blocks, rounded up to whole pages; 0: all of its blocks at once. Cut to its
                                   sh_runtime_options.max_bytes. */
    uint64_t workspace_bytes; /**< Device memory that the engine itself allocates while the guest is there: runtimes give up so much, and
                                   the library does not use it. It is free when sh_guest_begin() has waited for it (`wait_ns`), or else
                                   when sh_step_begin() of the guest has returned SH_OK after that: others may be in steps of theirs
                                   until then. */
    /** How long, in nanoseconds, sh_guest_begin() waits until all that it promises is there, because others have ended their steps and released
        their views; 0: not at all. A step that the waiting thread itself should end does not end meanwhile. \since 0.1 */
    uint64_t wait_ns;
} sh_guest_options;

#define SH_GUEST_OPTIONS_INIT {sizeof(sh_guest_options), 0, 0, 0, 0}
SH_API void sh_guest_options_init(sh_guest_options *options);

/**
 * Begins a scope in which a runtime is a guest: it gets memory out of the headroom, which is the budget less reservations, protected
 * memory, other guests and what other runtimes that hold memory need to run (sh_memory_info.headroom_bytes; sh_trim() those to 0 that
 * are done, whose next step may then be refused while the guest is there), or it is refused. Other runtimes give up what they have beyond
 * that, what they use furthest in the future first: now if they are between steps, else at their steps' edges. That it is let in says that
 * the memory is its own, not that it is there already: sh_step_begin() of the guest may be SH_ERROR_BUSY until those steps have ended.
 * Two things wait for that instead: sh_guest_options.wait_ns here, and sh_runtime_options.share_wait_ns of the guest in each call that plans.
 * Both are off by default, as a thread that is in a step of another runtime would wait for itself.
 * When the scope ends the guest's blocks are off the device, but for what is protected or reserved for it, and the others may have their
 * memory again. What is dirty is written back before. Being a guest twice at once is counted; the first scope's
 * terms hold, and asking for more than those is SH_ERROR_BUDGET.
 * @param runtime   Any other runtime of the same device: the host.
 * @param guest     A runtime that is in no step and holds no view.
 * @param options   NULL: defaults.
 * @param out_scope On success ended by the caller, by sh_scope_end().
 * @return SH_OK; SH_ERROR_INVALID_HANDLE; SH_ERROR_INVALID_STRUCT; SH_ERROR_INVALID_ARGUMENT (not on the same device, the same
 *         runtime, flags); SH_ERROR_BUSY (the guest is in a step, or a view of it is held; or `wait_ns` has passed: it
 *         is no guest then, and who has given memory up meanwhile takes it again); SH_ERROR_CANCELLED (it was destroyed while this waited);
 *         SH_ERROR_INVALID_STATE (it has no blocks, and `options`
 *         names no bytes: register its blocks first); SH_ERROR_BUDGET (it does not fit: the text says what
 *         it needs, what there is, and who has reserved). On an error it is no guest by this call, and no more was
 *         claimed than before. Blocks: it asks other runtimes to give memory up, and waits for `wait_ns` at most. \since 0.1
 */
SH_API sh_status sh_guest_begin(sh_runtime *runtime, sh_runtime *guest, const sh_guest_options *options, sh_scope **out_scope);

/**
 * Ends a scope, in whatever order scopes were begun; the handle is stale from then on, also after an error. A guest's memory is free
 * when this returns, unless the guest is in a step, a view of it is held, or a graph holds its plan: then when that ends. NULL is ignored. If the
 * runtime was destroyed meanwhile there is nothing to end, and that is no error.
 * @return SH_OK; SH_ERROR_INVALID_HANDLE; SH_ERROR_BACKEND (what is dirty could not be written back: the guest keeps its memory until it
 *         can, or is destroyed). Blocks when a guest leaves; so does the sh_release(), sh_step_end() or sh_graph_destroy() with which a guest
 *         whose scope has ended leaves, and returns the same error. \since 0.1
 */
SH_API sh_status sh_scope_end(sh_scope *scope);

/**
 * Gives device memory back now, down to `keep_bytes` or a little less, what is used last in a step first: before another
 * stage needs the room. The runtime takes its share again when its next step begins. Less than its smallest plan: it gives all back,
 * and takes its share also when a block is acquired. What is protected or reserved stays. What is dirty is written back before.
 * @param out_bytes What it holds now; may be NULL.
 * @return SH_OK, SH_ERROR_INVALID_HANDLE, SH_ERROR_BUSY (a step is under way, a view is held, or a graph holds the plan),
 *         SH_ERROR_BACKEND, SH_ERROR_CANCELLED, SH_ERROR_RUNTIME_LOST. Blocks. \since 0.1
 */
SH_API sh_status sh_trim(sh_runtime *runtime, uint64_t keep_bytes, uint64_t *out_bytes);

/**
 * Told when others want device memory that a runtime has beyond its share and cannot give up at once, because it is in a step or holds
 * views. `bytes` is how much. Called on the thread that asks for it, which is using another runtime of the device, or changes
 * its budget. It must not call the library, nor block: it may set a flag, so that the engine ends its step or releases views.
 */
typedef void (*sh_pressure_fn)(sh_runtime *runtime, uint64_t bytes, void *user_data);

/**
 * Sets the runtime's pressure callback; NULL: none, the default. When it returns, the previous one is not called any more: it waits for
 * a call that is under way. Returns SH_OK, SH_ERROR_INVALID_HANDLE. \since 0.1
 */
SH_API sh_status sh_set_pressure(sh_runtime *runtime, sh_pressure_fn pressure, void *user_data);

#ifdef __cplusplus
}
#endif

#endif
