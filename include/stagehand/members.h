/*
 * Sets: blocks of one size of which a call uses a few, such as the experts of a model. @experimental
 *
 * The members of a set share a pool of slots on the device. A call names the members that it needs, and gets the slot
 * of each in one array of slots. So a kernel that reads an array of all experts, and their numbers, reads the pool and
 * the numbers of the slots instead:
 *
 *     sh_set_options options = SH_SET_OPTIONS_INIT;
 *     options.call_members = 8;
 *     options.group_members = experts_of_a_layer;
 *     sh_set_create(rt, &options, experts, count, blocks, &set);
 *     ...
 *     for each layer:
 *         ids = the experts that the router has chosen, without repetition;
 *         sh_acquire_members(rt, set, ids, n, stream, 0, &pool, slots);
 *         launch(stream, pool.address, slots);
 *         sh_release_members(rt, set, ids, n, stream);
 *
 * The members are ordinary blocks, too: SH_BLOCK_UNORDERED ones, whose addresses change. All calls for blocks take
 * them. A set shares the runtime's memory for blocks outside the order: see sh_runtime_options.unordered_bytes. The
 * members stay that were used most often, and lately.
 */
#ifndef STAGEHAND_MEMBERS_H
#define STAGEHAND_MEMBERS_H

#include "base.h"
#include "runtime.h"
#include "streaming.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A set of a runtime. 0: none. */
typedef uint64_t sh_set;

/** What a set has. */
typedef struct sh_set_options {
    uint32_t struct_size;
    uint32_t reserved;
    /** The most members that one call uses at once. The plan always has slots for them. 0: one. */
    uint64_t call_members;
    /** Members are numbered group by group, such as the experts of a model layer by layer, and a call uses those of one
        group. Each step calls the groups in the same order, as a rule. So the library knows when a member can be used
        again at the earliest. The number of members of each group. 0: all are one. */
    uint64_t group_members;
    /** The most slots that the pool gets. 0: one for each member. */
    uint64_t slots;
    /** Distance between slots in bytes: a multiple of 256, at least the size of a member. 0: that size, rounded up. */
    uint64_t stride;
    const char* name; /**< Names the set in messages. May be NULL. */
} sh_set_options;

#define SH_SET_OPTIONS_INIT \
    { sizeof(sh_set_options), 0, 0, 0, 0, 0, 0 }
static inline void sh_set_options_init(sh_set_options* options) {
    const sh_set_options initial = SH_SET_OPTIONS_INIT;
    *options = initial;
}

/**
 * Registers a set, as sh_register_blocks() registers blocks.
 * @param members    `count` descriptions of the same size in bytes. SH_BLOCK_UNORDERED and SH_BLOCK_WHOLE are implied.
 * @param out_blocks `count` ids, in the order of `members`. A member's number is its place in this order. The ids are
 *                   valid until sh_set_destroy(), or until sh_unregister_blocks() of the member.
 * @retval SH_OK                     The set is registered.
 * @retval SH_ERROR_INVALID_ARGUMENT A description or an option is wrong. The text names it.
 * @retval SH_ERROR_SOURCE           As for sh_register_blocks().
 * @retval SH_ERROR_BACKEND          The driver failed.
 * @blocks As sh_register_blocks().
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_set_create(sh_runtime* runtime, const sh_set_options* options,
                                             const sh_block_desc* members, uint64_t count, sh_block* out_blocks,
                                             sh_set* out_set);

/**
 * Unregisters a set and its members, as sh_unregister_blocks() does.
 * @retval SH_OK                   The set does not exist any more.
 * @retval SH_ERROR_INVALID_STATE  A view of a member is held, or a capture is under way. Nothing has changed.
 * @retval SH_ERROR_INVALID_HANDLE There is no such set.
 * @retval SH_ERROR_BACKEND        The driver failed.
 * @blocks As sh_unregister_blocks().
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_set_destroy(sh_runtime* runtime, sh_set set);

/** A set now. */
typedef struct sh_set_info {
    uint32_t struct_size;
    uint32_t reserved;
    void* address;      /**< Device address of slot 0. NULL: the pool has no memory. */
    uint64_t stride;    /**< Distance between slots in bytes. */
    uint64_t slots;     /**< Slots that the pool has. A call can use so many members at once. */
    uint64_t members;   /**< Members that were registered. */
    uint64_t uses;      /**< Members that calls have asked for. */
    uint64_t hits;      /**< Of these, those that were in slots, or on their way. */
    uint64_t evictions; /**< Members that have made room for others. */
} sh_set_info;

/**
 * Tells what a set has, and how well it served.
 * @retval SH_OK                   It is written.
 * @retval SH_ERROR_INVALID_HANDLE There is no such set. So for the calls below.
 * @blocks Never.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_set_get_info(sh_runtime* runtime, sh_set set, sh_set_info* out_info);

/**
 * Acquires members, all or none, as sh_acquire_many() does. No member of the call takes the slot of another one, and
 * memory that a stream still reads is not overwritten. The pool of a device without SH_DEVICE_FIXED_ADDRESSES moves
 * when its size changes, which it does not while a view is held.
 * @param members   `count` numbers. A number may occur more than once, and needs as many releases.
 * @param out_pool  The pool: the address of slot 0, the bytes of all slots, and SH_VIEW_HIT if no load was begun. Its
 *                  serial has no meaning. Needs its struct_size.
 * @param out_slots `count` slots, in the order of `members`: member k lies at address + slot * sh_set_info.stride.
 * @retval SH_OK                     The members are held.
 * @retval SH_NOT_READY              As for sh_acquire().
 * @retval SH_ERROR_INVALID_ARGUMENT A number is not one of a member.
 * @retval SH_ERROR_BUDGET           The pool has fewer slots than the call has members. The text says how many there
 *                                   are, and how much memory would do. Use so many at once.
 * @retval SH_ERROR_HELD             Other views hold the slots that the call needs. The errors are those of
 *                                   sh_acquire(), too.
 * @blocks As sh_acquire(), but never for streams that use the slots.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_acquire_members(sh_runtime* runtime, sh_set set, const uint32_t* members,
                                                  uint64_t count, sh_stream stream, uint32_t flags, sh_view* out_pool,
                                                  uint32_t* out_slots);

/**
 * Ends as many acquires, as sh_release() does. It releases none if one of them is not held.
 * @retval SH_OK                     All are released.
 * @retval SH_ERROR_INVALID_ARGUMENT A number is not one of a member.
 * @retval SH_ERROR_INVALID_STATE    A member is not held as often, and all stay held; or the stream captures.
 * @blocks As sh_release().
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_release_members(sh_runtime* runtime, sh_set set, const uint32_t* members,
                                                  uint64_t count, sh_stream stream);

/**
 * Begins to load members that a call will probably use, the most probable ones first. A guess takes the slot of a
 * member only if that one is less probable to be used soon, and never that of a held one. It is a hint, as
 * sh_prefetch() is.
 * @param chances How probable the use of each member is, from 0 to 1. NULL: 1 for all.
 * @retval SH_OK                     The hint is taken.
 * @retval SH_ERROR_INVALID_ARGUMENT A number is not one of a member, or a chance is not from 0 to 1.
 * @blocks Never for streams. For memory as sh_acquire().
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_prefetch_members(sh_runtime* runtime, sh_set set, const uint32_t* members,
                                                   const float* chances, uint64_t count);

#ifdef __cplusplus
}
#endif

#endif
