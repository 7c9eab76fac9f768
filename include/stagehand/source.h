/*
 * Sources: where the bytes of a block come from.
 */
#ifndef STAGEHAND_SOURCE_H
#define STAGEHAND_SOURCE_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Sources of the bytes of a segment. */
enum {
    /** Memory of this process. The device copies pinned memory (sh_host_alloc(), or pinned by the driver) without a
        detour. */
    SH_SOURCE_POINTER = 1,
    /** A mapped file. The library reads it by system calls that return an error. A file that has become shorter
        therefore gives SH_ERROR_SOURCE and not a signal. */
    SH_SOURCE_MAPPED = 2,
    /** A range of an open file. Bytes in the page cache are read from the cache. Other bytes are read by direct I/O,
        which bypasses the cache. The registration fails with SH_ERROR_INVALID_ARGUMENT if the descriptor cannot be
        read. A load fails with SH_ERROR_SOURCE if the file is too short. */
    SH_SOURCE_FILE = 3,
    /** A callback that writes the bytes into a staging buffer. */
    SH_SOURCE_FILL = 4,
    /** Memory of this device, or of another device that the driver can copy from, for example over NVLink. The device
        copies it without a detour, also in graphs. The registration fails with SH_ERROR_INVALID_ARGUMENT if the device
        cannot reach the memory. */
    SH_SOURCE_DEVICE = 5
};

/** Formats of floating-point weights. \since 0.2 */
enum { SH_FORMAT_BF16 = 1, SH_FORMAT_F16 = 2, SH_FORMAT_F32 = 3, SH_FORMAT_F8_E4M3 = 4, SH_FORMAT_F8_E5M2 = 5 };

/**
 * Writes `bytes` bytes of a segment into `buffer`, beginning at `offset` in the segment. `buffer` is valid during the
 * call. The library asks for a segment in pieces, in any order, and again for each load. It calls the function on its
 * worker threads, on several at once for different ranges, and sh_verify_block() on the caller's thread. The function
 * must not call the library.
 * @return 0 on success. Any other value fails the load with SH_ERROR_CALLBACK.
 */
typedef int32_t (*sh_fill_fn)(void* buffer, uint64_t offset, uint64_t bytes, void* user_data);

/** A range of a block, and the source of its bytes. */
typedef struct sh_segment {
    uint32_t struct_size;
    uint32_t kind;   /**< SH_SOURCE_* */
    uint64_t offset; /**< Offset of the range in the block, in bytes. */
    uint64_t bytes;  /**< Length of the range. May be 0. */
    /** POINTER, MAPPED, DEVICE: the bytes. They must stay valid until the block is unregistered, has got other segments
        (sh_source_replace()), or its runtime is destroyed. With a `format`, and unless the block is SH_BLOCK_MUTABLE,
        only until sh_register_blocks() or sh_source_replace() has returned SH_OK. The library writes to them if the
        block is SH_BLOCK_MUTABLE. The memory must then be writable. */
    const void* pointer;
    int64_t file;         /**< FILE: an open descriptor. The library duplicates it, so the caller may close it. */
    uint64_t file_offset; /**< FILE: offset of the bytes in the file. */
    sh_fill_fn fill;      /**< FILL: the callback. */
    void* user_data;      /**< FILL: passed to `fill`. */
    /** POINTER, MAPPED, FILE: the exact size of a packed tensor (`stagehand pack`), whose first byte is at `pointer` or
        at `file_offset`. `bytes` and `packed_offset` count unpacked bytes. The block cannot be SH_BLOCK_MUTABLE.

        The tensor crosses the link packed, and the device unpacks it, if the model does not fit and the backend can do
        so: see docs/concepts.md. Else the library's workers unpack it on the host.

        The bytes of a packed tensor must not change while the block is registered, not even in an update of the
        source: sh_source_replace() takes another tensor. A load fails with SH_ERROR_SOURCE if a checksum shows damage.
        The library compares the checksums of pinned memory (sh_host_alloc(), SH_BLOCK_PIN) when it registers the block,
        and others in the first load, or in each load that the workers unpack. Later changes may give undefined weights.
        0: the source is not packed.
        @experimental \since 0.2 */
    uint64_t packed_bytes;
    uint64_t packed_offset; /**< Offset of the segment in the contents of the packed tensor. @experimental
                                 \since 0.2 */
    /** POINTER with SH_BLOCK_PACK: SH_FORMAT_* of the segment's elements. 0: the library reads the segment where it is.
        Must be 0 without that flag, for other sources, and with packed_bytes. @experimental \since 0.2 */
    uint32_t format;
    uint32_t reserved;
} sh_segment;

#define SH_SEGMENT_INIT \
    { sizeof(sh_segment), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
static inline void sh_segment_init(sh_segment* segment) {
    const sh_segment initial = SH_SEGMENT_INIT;
    *segment = initial;
}

/**
 * Unpacks a range of the contents of a packed tensor (`stagehand pack`) on the calling thread, about 1 GB a second.
 * Loads need no such call: they unpack sh_segment.packed_bytes by themselves.
 * @param packed       The packed tensor, at any alignment.
 * @param packed_bytes The exact size of the packed tensor.
 * @param offset       Offset of the range in the contents, in bytes.
 * @param bytes        Length of the range. May be 0.
 * @param out          Gets `bytes` bytes. They are undefined after a failure.
 * @retval SH_OK                     The range is in `out`.
 * @retval SH_ERROR_INVALID_ARGUMENT A pointer is NULL, or the range ends behind the contents.
 * @retval SH_ERROR_SOURCE           There is no packed tensor of this size, or a checksum shows damage.
 * @blocks Never.
 * @experimental
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_unpack(const void* packed, uint64_t packed_bytes, uint64_t offset, uint64_t bytes,
                                         void* out);

#ifdef __cplusplus
}
#endif

#endif
