/*
 * Parts: blocks that the engine uses part by part, such as a matrix by rows.
 *
 * The largest block of a runtime costs time and memory. Device memory of the block in use cannot hold other blocks, and
 * the budget must be at least the size of the largest block. An engine that uses a large block part by part lets the
 * library divide the block:
 *
 *     sh_part_options options = SH_PART_OPTIONS_INIT;
 *     options.unit_bytes = bytes_of_a_row;
 *     sh_register_parts(rt, &desc, &options, parts, capacity, &count);
 *     ...
 *     for each part of parts:
 *         sh_acquire(rt, part.block, stream, 0, &view);
 *         multiply(stream, view.address, part.offset / bytes_of_a_row, part.bytes / bytes_of_a_row);
 *         sh_release(rt, part.block, stream);
 */
#ifndef STAGEHAND_PARTS_H
#define STAGEHAND_PARTS_H

#include "base.h"
#include "runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How sh_register_parts() divides a block. */
typedef struct sh_part_options {
    uint32_t struct_size;
    uint32_t reserved;
    /** A part begins at a multiple of this size in the block, in bytes: a row of a matrix, for example. At least 1. */
    uint64_t unit_bytes;
    /** The most that a part has, in bytes. A part has more if one unit has more, or if `capacity` is too small. 0: the
        library takes a 128th of the device's budget, or of sh_runtime_options.max_bytes if that is less, but at least
        16 pages. */
    uint64_t largest_bytes;
} sh_part_options;

#define SH_PART_OPTIONS_INIT \
    { sizeof(sh_part_options), 0, 0, 0 }
static inline void sh_part_options_init(sh_part_options* options) {
    const sh_part_options initial = SH_PART_OPTIONS_INIT;
    *options = initial;
}

/** A part of a divided block. */
typedef struct sh_part {
    uint32_t struct_size;
    uint32_t reserved;
    sh_block block;  /**< The part's block. */
    uint64_t offset; /**< Offset of the part in the divided block, in bytes. */
    uint64_t bytes;  /**< Size of the part. */
} sh_part;

/**
 * Divides a block into parts of nearly equal size, and registers each part as a block of its own, all or none. The
 * parts have device addresses of their own, and are acquired, released and unregistered like other blocks. Only the
 * parts exist: the divided block itself has no id. Parts stay as they are if the budget changes.
 *
 * A part has the flags and the callback of the description. `on_load` gets the part's block, and offsets in the part.
 * SH_SOURCE_FILL gets offsets in the segment of the description. A part's name is the name of the description with the
 * part's number and the number of parts: "head[2/5]". The last part ends with the block, even inside a unit. Parts of
 * less than two pages share pages, as small blocks do. Each part counts as a block for sh_runtime_options.max_held.
 * @param desc      The block, as for sh_register_blocks().
 * @param options   How the block is divided. Must not be NULL.
 * @param out_parts The parts in the order of their offsets. Each element's struct_size must be set. The elements after
 *                  the last part stay as they are.
 * @param capacity  Number of elements of `out_parts`, at least 1. The library makes larger parts if there would be more
 *                  parts than elements.
 * @param out_count The number of parts.
 * @retval SH_OK                     The parts are registered.
 * @retval SH_ERROR_INVALID_ARGUMENT The description or an option is wrong. The text names the field. Other errors are
 *                                   those of sh_register_blocks().
 * @blocks As sh_register_blocks().
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_register_parts(sh_runtime* runtime, const sh_block_desc* desc,
                                                 const sh_part_options* options, sh_part* out_parts, uint64_t capacity,
                                                 uint64_t* out_count);

#ifdef __cplusplus
}
#endif

#endif
