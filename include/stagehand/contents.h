/*
 * Changing contents: the engine changes the sources of blocks, or mutable blocks on the device.
 */
#ifndef STAGEHAND_CONTENTS_H
#define STAGEHAND_CONTENTS_H

#include "base.h"
#include "source.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Marks the device contents of blocks as out of date. The next acquire loads them again. Views that are held keep their
 * contents. An acquire of the same block, or of a block that shares its pages, returns SH_ERROR_HELD until these views
 * are released. Dirty contents of these blocks that are not written back yet are lost. The sources must already have
 * the new bytes. A write-back that has begun goes on, so change the memory of a mutable block after sh_write_back(). To
 * change bytes that the library may be reading, use sh_source_update_begin().
 *
 * Segments that SH_BLOCK_PACK has copied are loaded again from the library's copy, so that a change of the caller's
 * memory has no effect. A mutable block is read from the caller's memory from then on.
 * @retval SH_OK            The blocks will be loaded again.
 * @retval SH_ERROR_BACKEND The driver failed.
 * @blocks Never.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_invalidate_blocks(sh_runtime* runtime, const sh_block* blocks, uint64_t count);

/**
 * Waits until no load, write-back, launch of a graph or sh_verify_block() uses the sources of these blocks, and
 * prevents new loads. The caller may then change the bytes. From the beginning of the call until
 * sh_source_update_end(), an acquire of such a block, or of a block that shares its pages, returns
 * SH_ERROR_INVALID_STATE. Views may stay held. The library writes dirty contents back first, and the blocks cannot be
 * marked dirty until the end of the update. Updates of one block do not nest. After a failure no update has begun.
 *
 * SH_BLOCK_PACK has copied segments to memory of the library, which only sh_source_replace() changes.
 * @retval SH_OK                  The bytes may be changed.
 * @retval SH_ERROR_INVALID_STATE An update of a block has begun already, a view of dirty contents is held, or a graph
 *                                that uses a block has been entered.
 * @retval SH_ERROR_BACKEND       The driver failed.
 * @blocks Until these uses have ended.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_source_update_begin(sh_runtime* runtime, const sh_block* blocks, uint64_t count);

/**
 * Gives a block other segments, after sh_source_update_begin() has returned and before sh_source_update_end(): other
 * memory, another file, or new contents for SH_BLOCK_PACK. The address, size, flags and on_load of the block stay. The
 * rules of sh_register_blocks() apply to the new segments. Segments with a `format` are packed with the bytes that they
 * have during the call, and must not change meanwhile.
 *
 * The library neither reads nor writes the old segments after the return, and frees its own copies of them, which it
 * has beside the new ones until then. Views that are held keep their contents. The next call that plans makes a new
 * plan, if no view is held and no graph holds the plan. After a failure, nothing has changed.
 * @param segments As in sh_block_desc. Copied.
 * @param count    Number of segments. 0: no byte of the block is defined from then on.
 * @retval SH_OK                     The block has the new segments.
 * @retval SH_ERROR_INVALID_ARGUMENT A segment is wrong. The text names the block and the field.
 * @retval SH_ERROR_INVALID_STATE    No update of the block has begun, or another thread has ended it meanwhile; a
 *                                   capture is under way; or a graph uses the block: destroy the graph first.
 * @retval SH_ERROR_SOURCE           The index of a packed tensor cannot be read.
 * @retval SH_ERROR_BACKEND          The driver failed.
 * @blocks As sh_register_blocks().
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_source_replace(sh_runtime* runtime, sh_block block, const sh_segment* segments,
                                                 uint64_t count);

/**
 * Ends sh_source_update_begin() and invalidates the blocks. Changes of memory that SH_BLOCK_PACK has copied are ignored
 * if other segments of the block were not copied.
 * @retval SH_OK                  The update has ended.
 * @retval SH_ERROR_INVALID_STATE No update of a block was begun: nothing has ended. Or SH_BLOCK_PACK has copied all
 *                                segments of a block that is not mutable, and sh_source_replace() was not called: the
 *                                update of all blocks has ended, and the copies are as before. The text tells which.
 * @retval SH_ERROR_BACKEND       The library could not write back dirty contents of a block that shares pages with
 *                                these blocks. The contents stay dirty. The update has ended.
 * @blocks While the library writes back dirty contents of blocks that share pages with these blocks.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_source_update_end(sh_runtime* runtime, const sh_block* blocks, uint64_t count);

/**
 * Tells the library that the engine has changed the contents of a mutable block on the device, or will change them
 * before it releases the view that it holds. The library writes the contents to the block's source before it uses the
 * memory for another purpose, and after the work of all streams that used the block. The write-back may begin when the
 * last view is released. The library may write to the source until sh_write_back() or sh_unregister_blocks() returns.
 * Each acquire after which the engine changes contents needs its own mark.
 * @retval SH_OK                  The block is marked.
 * @retval SH_ERROR_INVALID_STATE The block is not mutable, no view of it is held, or its source is being updated.
 * @blocks Never.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_mark_dirty(sh_runtime* runtime, sh_block block);

/**
 * Writes dirty contents of these blocks to their sources, and waits until they are written. Blocks that are not dirty
 * are skipped.
 * @param blocks NULL with a count of 0: all blocks of the runtime. Else a count of 0 writes nothing. A vector without
 *               elements may have NULL as its data.
 * @retval SH_OK                  The sources have the contents.
 * @retval SH_ERROR_INVALID_STATE A view of a dirty block is held, or a capture is under way. Other blocks may have been
 *                                written.
 * @retval SH_ERROR_BACKEND       The driver failed.
 * @blocks Until the contents are written.
 * \since 0.1
 */
SH_API SH_MUST_CHECK sh_status sh_write_back(sh_runtime* runtime, const sh_block* blocks, uint64_t count);

#ifdef __cplusplus
}
#endif

#endif
