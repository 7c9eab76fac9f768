/*
 * Residency: which models keep their device memory when several share a device. Protection, reservations, guests, and
 * giving memory back.
 *
 * Every runtime has a share of its device's budget. The library divides the budget again when a runtime comes, goes or
 * changes, and when runtimes are used more or less often than before. Memory goes where it saves the most time. A
 * runtime whose share becomes smaller gives memory up between its steps, while it holds no view. Three things restrict
 * that division:
 *
 *   protected   A block's contents stay on the device. Counted. See sh_protect_blocks() and sh_keep_resident().
 *   reserved    A runtime's share never falls below a number of bytes. See sh_reserve().
 *   guest       A runtime gets a number of bytes that nobody has reserved, until its scope ends. See sh_guest_begin().
 *
 * Streamed parts and blocks outside the order take turns in their own runtime's memory. This is not eviction, and goes
 * on under all three restrictions, except for blocks outside the order that are protected one by one. Shares are not
 * fair: two equal models may get different shares. Reserve memory if that matters. A runtime's claims (what it needs,
 * protects, reserves, and was granted as a guest) overlap. Do not add up the fields of sh_memory_info; use
 * headroom_bytes.
 */
#ifndef STAGEHAND_RESIDENCY_H
#define STAGEHAND_RESIDENCY_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Protects blocks: all of them, or none after an error. The contents of protected blocks in resident parts, and in
 * memory for blocks outside the order, stay on the device. Neither other runtimes nor other blocks of this runtime take
 * their memory. New plans put protected blocks on the device first, and put them there whole if the runtime's share has
 * room. Protection takes no memory from other runtimes, so call sh_reserve() first. Leave enough memory for the largest
 * unprotected block outside the order. An acquire of such a block returns SH_ERROR_HELD if too little memory is left
 * for it. Protection does not prevent sh_unregister_blocks(), sh_invalidate_blocks(), or a new order that needs the
 * memory. Protections of a block are counted.
 * @param blocks    Copied. A block may occur more than once.
 * @param out_scope sh_scope_end() takes the protection back. NULL: it lasts as long as the blocks.
 * @retval SH_OK The blocks are protected.
 * @blocks Never.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_protect_blocks(sh_runtime* runtime, const sh_block* blocks, uint64_t count,
                                                 sh_scope** out_scope);

/**
 * Keeps a runtime's device memory: other runtimes cannot take it. New plans keep the resident parts as long as the
 * runtime's own order leaves room for them. Scopes nest and are counted. The library logs a warning if the runtime has
 * no blocks.
 * @param out_scope sh_scope_end() ends this. NULL: it lasts as long as the runtime.
 * @retval SH_OK The runtime keeps its memory.
 * @blocks Never.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_keep_resident(sh_runtime* runtime, sh_scope** out_scope);

/** Priorities of a reservation: whether the library may suspend it. */
enum {
    SH_PRIORITY_PRIMARY = 0, /**< The library never suspends the reservation. */
    /** The library suspends the reservation if a primary reservation, a new runtime or a lowered budget cannot get
        memory in another way, but never for a guest. It logs a warning. It first suspends the reservation of the
        runtime whose next use is furthest in the future. A runtime without steps is ranked by the time since its last
        use. The reservation is in force again when there is room. */
    SH_PRIORITY_SECONDARY = 1
};

/**
 * Reserves device memory for a runtime. The runtime's share is never smaller than the reservation. Neither other
 * runtimes nor guests get any of the reserved memory, even if the runtime has no use for it. A runtime has at most one
 * reservation: a further call puts another one in its place, and the end of the earlier scope then has no effect. The
 * runtime gets missing memory from runtimes between steps at once, and from others at the end of their steps.
 * @param bytes     Rounded up to whole pages and cut to sh_runtime_options.max_bytes. 0: as much as the runtime's plan
 *                  uses (resident parts, ring, and memory for blocks outside the order). The call then plans if there
 *                  is no plan. This is all the memory that is of use to the runtime, so leave room for guests with
 *                  sh_runtime_options.max_bytes, or name a number.
 * @param priority  SH_PRIORITY_*
 * @param out_scope sh_scope_end() ends the reservation. NULL: it lasts as long as the runtime.
 * @retval SH_OK                     The memory is reserved.
 * @retval SH_ERROR_INVALID_ARGUMENT `priority` is not a priority.
 * @retval SH_ERROR_BUDGET           The reservation does not fit beside reserved and protected memory, memory of
 *                                   guests, and the memory that other runtimes need to run. The text names the
 *                                   figures. The earlier reservation stays.
 * @retval SH_ERROR_INVALID_STATE    `bytes` is 0, and no order is known or sh_plan() returns this error.
 * @retval SH_ERROR_BUSY             `bytes` is 0, and sh_plan() returns this error.
 * @retval SH_ERROR_BACKEND          The driver failed.
 * @blocks While it plans and while other runtimes give memory up.
 * @threads Not from a callback of the library.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_reserve(sh_runtime* runtime, uint64_t bytes, uint32_t priority, sh_scope** out_scope);

enum {
    /** Grant less than `bytes` if the headroom is smaller and the guest's smallest plan fits into the headroom. */
    SH_GUEST_SHRINK = 1
};

/** Memory that sh_guest_begin() grants to a guest. */
typedef struct sh_guest_options {
    uint32_t struct_size;
    uint32_t flags; /**< SH_GUEST_* */
    /** Device memory for the guest's blocks, in bytes, rounded up to whole pages and cut to
        sh_runtime_options.max_bytes. 0: all blocks at once. */
    uint64_t bytes;
    /** Device memory that the engine itself allocates during the guest's stay, in bytes. Runtimes give it up, and the
        library does not use it. It is free after sh_guest_begin() has waited (`wait_ns`), or after the guest's first
        sh_step_begin() that returns SH_OK. Before that other runtimes may still be in steps. */
    uint64_t workspace_bytes;
    /** How long, in nanoseconds, sh_guest_begin() waits until other runtimes have ended their steps and released their
        views, so that all the memory is there. 0: it does not wait. UINT64_MAX: without limit. The calling thread must
        not itself be in such a step. */
    uint64_t wait_ns;
} sh_guest_options;

#define SH_GUEST_OPTIONS_INIT \
    { sizeof(sh_guest_options), 0, 0, 0, 0 }
static inline void sh_guest_options_init(sh_guest_options* options) {
    const sh_guest_options initial = SH_GUEST_OPTIONS_INIT;
    *options = initial;
}

/**
 * Begins a scope in which a runtime is a guest: it is granted memory out of the headroom
 * (sh_memory_info.headroom_bytes), or the call fails. The headroom is the budget less reservations, protected memory,
 * other guests, and the memory that other runtimes need to run if they hold memory. A sh_trim() of an idle runtime to 0
 * bytes enlarges the headroom. The next step of that runtime may then fail during the guest's stay.
 *
 * Other runtimes give up the memory that they hold beyond these amounts. The memory that they use furthest in the
 * future goes first. Runtimes between steps give memory up at once, and other runtimes at the end of their steps. The
 * guest's sh_step_begin() may return SH_ERROR_BUSY until all memory is given up. To wait instead, set
 * sh_guest_options.wait_ns for this call, or sh_runtime_options.share_wait_ns of the guest for its calls that plan.
 * Both are 0 by default, because a thread inside a step of another runtime would wait for itself.
 *
 * The guest's blocks leave the device when the scope ends, except for protected and reserved memory of the guest. Dirty
 * contents are written back first: until they can be, the guest keeps its memory, and sh_scope_end() returns
 * SH_ERROR_BACKEND. A guest that is in a step then, holds a view, or has a graph that holds its plan leaves with the
 * sh_step_end(), sh_release() or sh_graph_destroy() that ends this state, which may wait and fail as sh_scope_end()
 * does. The other runtimes may then take their memory again. Guest scopes of one runtime are counted. The options of
 * the first scope stay in force, and a request for more returns SH_ERROR_BUDGET. The call claims no memory and does not
 * make the runtime a guest if it fails.
 * @param guest     A runtime that is in no step and holds no view.
 * @param options   NULL: defaults.
 * @param out_scope sh_scope_end() ends the stay. Must not be NULL.
 * @retval SH_OK                  The runtime is a guest.
 * @retval SH_ERROR_INVALID_STATE The guest is in a step or holds a view; it is released (see sh_pause()); or it has no
 *                                blocks and `options` names no bytes.
 * @retval SH_ERROR_BUSY          wait_ns has passed and the memory is not there. Other runtimes take back the memory
 *                                that they gave up.
 * @retval SH_ERROR_BUDGET        The guest does not fit. The text names the memory that the guest needs, the memory
 *                                that is left, and the runtimes that have reserved memory.
 * @retval SH_ERROR_BACKEND       The driver failed.
 * @blocks While other runtimes give memory up, and for wait_ns at most.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_guest_begin(sh_runtime* guest, const sh_guest_options* options, sh_scope** out_scope);

/**
 * Gives device memory back now, down to `keep_bytes` or a little less, for example before another stage needs it.
 * Memory that a step uses last goes first. The runtime takes its share again when its next step begins. The runtime
 * gives everything back if `keep_bytes` is less than the smallest plan needs. It then also takes its share again when a
 * block is acquired. Protected and reserved memory stays. Dirty contents are written back first.
 * @param out_bytes Device memory that the runtime holds now. May be NULL.
 * @retval SH_OK                  The memory is given back.
 * @retval SH_ERROR_INVALID_STATE A step is under way, a view is held, or a graph holds the plan.
 * @retval SH_ERROR_BACKEND       The driver failed.
 * @blocks Until the write-backs and the work on the memory have ended.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_trim(sh_runtime* runtime, uint64_t keep_bytes, uint64_t* out_bytes);

/**
 * The library calls this function when other runtimes need `bytes` bytes that `runtime` holds beyond its share. The
 * runtime cannot give these bytes up at once, because it is in a step or holds views. The calling thread uses another
 * runtime of the device, or changes the device's budget. The function must neither call the library nor wait. It may
 * set a flag, so that the engine ends its step or releases views.
 */
typedef void (*sh_pressure_fn)(sh_runtime* runtime, uint64_t bytes, void* user_data);

/**
 * Sets the runtime's pressure callback. NULL: none, which is the default. The previous callback is not called any more
 * after the return.
 * @retval SH_OK The callback is set.
 * @blocks Until a call of the previous callback has ended.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_set_pressure(sh_runtime* runtime, sh_pressure_fn pressure, void* user_data);

#ifdef __cplusplus
}
#endif

#endif
