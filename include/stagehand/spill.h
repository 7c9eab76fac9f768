/*
 * Spilling: tensors that a training step saves for its backward leave the device for host memory, and come back before
 * the backward needs them. A spiller manages the saved tensors of one training job on a device. Device memory belongs
 * to the engine: the spiller copies out of and into memory that the engine names.
 *
 *     sh_spiller_begin_step(spiller, step);
 *     for each tensor that the forward saves:
 *         sh_spill(spiller, &tensor, stream, 0, &ticket);
 *         sh_spiller_collect(spiller, stream, 0, tickets, capacity, &count);
 *         free_on(stream, memory of tickets[0..count-1]);  // they have left
 *     for each ticket in the backward:
 *         sh_spiller_get_upcoming(spiller, used_bytes, tickets, capacity, &count);
 *         sh_prefetch_spilled(spiller, tickets, addresses of new memory, count, stream);
 *         if (sh_restore(spiller, ticket, address, stream) == SH_KEPT)  // address: its prefetch, or new memory
 *             use the memory of sh_spill();                             // it never left
 *         launch(stream, address);
 *         sh_ticket_release(spiller, ticket);
 *     sh_spiller_end_step(spiller);
 *
 * The spiller decides which tensors leave: the oldest first, while the device has more memory in use than a watermark,
 * or while more than a number of bytes is kept. Each step begins to send tensors away at its start, up to as many bytes
 * as the previous step sent away. The spiller remembers the order in which a step restored its tensors, and names the
 * tickets of the next step in that order.
 *
 * Copies go through streams of the library. The streams of the engine wait for the copies, and the copies wait for the
 * streams of the engine. The calling thread waits for neither, unless a comment says otherwise.
 */
#ifndef STAGEHAND_SPILL_H
#define STAGEHAND_SPILL_H

#include "activations.h"
#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The saved tensors of one training job. See the top of this file. */
typedef struct sh_spiller sh_spiller;

/** One saved tensor of one spiller. 0 is never a ticket. A spiller never uses a ticket twice. */
typedef uint64_t sh_ticket;

enum {
    /** At most keep_bytes of saved tensors stay on the device. The oldest tensors leave while the total is larger. */
    SH_SPILLER_KEEP_BYTES = 1,
    /** Every restored tensor is compared with its contents in host memory, by a checksum of 64 bits (XXH3). For
        debugging: sh_restore() then blocks. */
    SH_SPILLER_CHECKSUMS = 2,
    /** @experimental Tensors with a format (sh_saved_tensor.format) leave packed without loss, and come back so, if
        they have 256 KiB or more and the device packs: NVIDIA GPUs do. Programs on the GPU then write host memory and
        read it over the link. A tensor whose address is no multiple of 16, or that finds no pinned buffer, leaves as it
        is. */
    SH_SPILLER_PACK = 4
};

/** A size class of the pool of pinned memory. */
typedef struct sh_spill_class {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t bytes; /**< Size of each buffer: 1 to 2^40. */
    /** Number of buffers that sh_spiller_create() allocates. It is an error if the buffers of all classes take more
        than pool_bytes. */
    uint64_t count;
} sh_spill_class;

#define SH_SPILL_CLASS_INIT \
    { sizeof(sh_spill_class), 0, 0, 0 }
static inline void sh_spill_class_init(sh_spill_class* size_class) {
    const sh_spill_class initial = SH_SPILL_CLASS_INIT;
    *size_class = initial;
}

/** Options of a spiller. */
typedef struct sh_spiller_options {
    uint32_t struct_size;
    uint32_t flags; /**< SH_SPILLER_* */
    /** Tensors leave, the oldest first, from the moment when more than this number of bytes is in use on the device. 0:
        no watermarks. */
    uint64_t high_watermark_bytes;
    /** Tensors stop leaving when at most this number of bytes is in use. Not above high_watermark_bytes. 0: three
        quarters of high_watermark_bytes. */
    uint64_t low_watermark_bytes;
    uint64_t keep_bytes;  /**< See SH_SPILLER_KEEP_BYTES. 0 without that flag. */
    uint64_t least_bytes; /**< Tensors with fewer bytes stay. 0: 4096. */
    /** Limit on the bytes of copies in flight to the host. sh_spiller_collect() makes the stream wait for the oldest
        copy after a spill beyond this limit, but only if the bytes in flight are beyond another limit, too: beyond
        keep_bytes together with the kept bytes, or beyond high_watermark_bytes in use. 0: 256 MiB, or 1 GiB with
        SH_SPILLER_PACK. */
    uint64_t to_host_bytes;
    /** Bytes that sh_spiller_get_upcoming() names ahead of use. 0: 256 MiB, or 1 GiB with SH_SPILLER_PACK. */
    uint64_t to_device_bytes;
    uint32_t to_host_copies; /**< Number of copies in flight to the host. 0: to_host_bytes is the only bound. */
    /** Number of tickets that are prefetched and not restored. 0: to_device_bytes is the only bound. */
    uint32_t to_device_copies;
    /** The most pinned memory that the pool allocates. 0: half of the host memory that was available when the spiller
        was created. */
    uint64_t pool_bytes;
    /** Size classes, smallest first. NULL: the pool makes classes for the sizes that it sees, each at most a sixteenth
        larger than the tensor. */
    const sh_spill_class* classes;
    uint64_t class_count;
} sh_spiller_options;

#define SH_SPILLER_OPTIONS_INIT \
    { sizeof(sh_spiller_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
static inline void sh_spiller_options_init(sh_spiller_options* options) {
    const sh_spiller_options initial = SH_SPILLER_OPTIONS_INIT;
    *options = initial;
}

/**
 * Creates a spiller on a device. The device stays open for it until sh_spiller_destroy().
 * @param options     NULL: defaults. Without watermarks and without SH_SPILLER_KEEP_BYTES a tensor leaves only if its
 *                    sh_spill() has the flag SH_SPILL_NOW.
 * @param out_spiller The caller owns the spiller on success and destroys it with sh_spiller_destroy().
 * @retval SH_OK                     The spiller exists.
 * @retval SH_ERROR_INVALID_ARGUMENT An option is out of range or contradicts another. The text names the option.
 * @retval SH_ERROR_BACKEND          The driver failed.
 * @blocks While it pins the buffers of `classes`. With SH_SPILLER_PACK also while the device packs something for a
 *         trial, for which the driver translates programs.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_spiller_create(sh_device* device, const sh_spiller_options* options,
                                                 sh_spiller** out_spiller);

/**
 * Waits for copies in flight and frees the spiller. All its tickets end. Device memory that the engine gave for copies
 * may be freed afterwards. NULL and stale handles are ignored.
 * @blocks Until copies have ended.
 * \since 0.2
 */
SH_API void sh_spiller_destroy(sh_spiller* spiller);

/**
 * Begins a step: a forward and its backward. Steps tell the spiller where the order of restores begins again. Tickets
 * of earlier steps stay valid. The order also begins again, even without steps, when no ticket is left.
 * @param step The engine's number of the step, for telemetry.
 * @retval SH_OK                  The step has begun.
 * @retval SH_ERROR_INVALID_STATE A step is under way.
 * @blocks Never.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_spiller_begin_step(sh_spiller* spiller, uint64_t step);

/**
 * Ends a step. The spiller learns the order of the step's restores, asks for the buffers that were missing (a thread of
 * the library pins them), and writes a line to the file of
 * sh_telemetry_start().
 * @retval SH_OK                  The step has ended.
 * @retval SH_ERROR_INVALID_STATE No step is under way.
 * @retval SH_ERROR_IO            The line could not be written. The step has ended.
 * @blocks While it writes the line.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_spiller_end_step(sh_spiller* spiller);

/** A tensor that the engine saves. */
typedef struct sh_saved_tensor {
    uint32_t struct_size;
    uint32_t element_bytes; /**< Size of an element: 1 to 65,536. */
    uint64_t address;       /**< Device address of the element whose indices are all 0. */
    uint64_t dimensions;    /**< Number of dimensions: 0 (one element) to 64. */
    const int64_t* sizes;   /**< `dimensions` sizes. A tensor with a size of 0 stays. */
    /** `dimensions` strides in elements. They may be 0 or negative. NULL: the last index runs fastest, without gaps. */
    const int64_t* strides;
    /** Start address of the memory that the tensor is a view of. 0: the address of the tensor's first byte. */
    uint64_t storage_address;
    uint64_t
        storage_bytes; /**< Size of that memory. The whole tensor lies in it. 0: the bytes that the tensor spans. */
    /** The engine's name for the contents of that memory. Tensors with the same key share one copy. The key must change
        when the contents change, and when the memory is given back. 0: the copy is not shared. */
    uint64_t storage_key;
    /** Device memory in use now, as the engine's allocator counts it, for the watermarks. 0: the library asks the
        driver. */
    uint64_t used_bytes;
    uint32_t format;   /**< SH_FORMAT_* of the elements, for SH_SPILLER_PACK. 0: unknown. @experimental \since 0.2 */
    uint32_t reserved; /**< 0. \since 0.2 */
} sh_saved_tensor;

#define SH_SAVED_TENSOR_INIT \
    { sizeof(sh_saved_tensor), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
static inline void sh_saved_tensor_init(sh_saved_tensor* tensor) {
    const sh_saved_tensor initial = SH_SAVED_TENSOR_INIT;
    *tensor = initial;
}

enum {
    SH_SPILL_NOW = 1,  /**< The tensor leaves, however much memory is in use. */
    SH_SPILL_KEEP = 2, /**< The tensor never leaves, and does not count for keep_bytes. */
};

/**
 * Saves a tensor. The tensor stays on the device or leaves, now or later: sh_spiller_collect() tells. The caller keeps
 * the tensor's memory, and does not write to it, until sh_spiller_collect() names the ticket, or until
 * sh_ticket_release() ends the ticket.
 *
 * The bytes between the tensor's first and last element are copied. All of the storage is copied instead if these bytes
 * are more than half of it, so that other views of the storage share the copy. A tensor stays if its copy fails to
 * begin, or if no host memory is left for it; the library logs a warning.
 *
 * @param stream     The stream whose work produces the tensor. The copy comes after the work that is queued there now.
 *                   A tensor that leaves later is copied after the work that is queued there then, on the streams of
 *                   all tickets that share the copy. The stream must exist until the ticket is collected or released.
 * @param flags      0, SH_SPILL_NOW or SH_SPILL_KEEP.
 * @param out_ticket Valid with SH_OK and SH_KEPT until sh_ticket_release().
 * @retval SH_OK                     The tensor is leaving, or shares the copy of a tensor that has left.
 * @retval SH_KEPT                   The tensor stays for now.
 * @retval SH_ERROR_INVALID_ARGUMENT The description is impossible. The text names the field.
 * @retval SH_ERROR_UNSUPPORTED      The stream captures a graph.
 * @retval SH_ERROR_BACKEND          The driver failed, and nothing is saved.
 * @blocks Never, except while the system copies into host memory that is not pinned: see
 *         sh_spiller_stats.pool_misses.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_spill(sh_spiller* spiller, const sh_saved_tensor* tensor, sh_stream stream,
                                        uint32_t flags, sh_ticket* out_ticket);

enum { SH_COLLECT_ALL = 1 /**< Collect everything that is leaving, not only what is beyond the bounds. */ };

/**
 * Names tickets whose device memory is not needed any more: their copies have ended, or `stream` now waits for them.
 * Memory that the caller gives back may be used again by work that is queued on `stream` after this call. Each ticket
 * is named once. Call this function after sh_spill(), and with SH_COLLECT_ALL at the end of a forward.
 * @param stream    The stream that uses the memory next. With SH_STREAM_HOST the call names finished copies, and waits
 *                  for those beyond the bounds.
 * @param tickets   Receives at most `capacity` tickets. The next call names the others. A ticket may be released
 *                  already.
 * @param out_count Number of tickets that were written.
 * @retval SH_OK            The tickets are named.
 * @retval SH_ERROR_BACKEND The driver failed. Tensors whose copies failed stay, and `out_count` tickets are named
 *                          nevertheless.
 * @blocks Never, except with SH_STREAM_HOST and with SH_SPILLER_CHECKSUMS.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_spiller_collect(sh_spiller* spiller, sh_stream stream, uint32_t flags,
                                                  sh_ticket* tickets, uint64_t capacity, uint64_t* out_count);

enum {
    SH_TICKET_KEPT = 1,    /**< The memory of sh_spill() has the bytes. */
    SH_TICKET_LEAVING = 2, /**< A copy is under way. The memory of sh_spill() has the bytes, too. */
    SH_TICKET_AWAY = 3,    /**< Host memory has the bytes. */
    SH_TICKET_PREFETCHED =
        4 /**< Memory of sh_prefetch_spilled() has the bytes, or gets them. Host memory has them, too. */
};

/** Information about a ticket. */
typedef struct sh_ticket_info {
    uint32_t struct_size;
    uint32_t state;              /**< SH_TICKET_* */
    uint64_t bytes;              /**< Size of the device memory that sh_restore() fills. */
    uint64_t offset;             /**< Offset in that memory, in bytes, of the element whose indices are all 0. */
    uint64_t copy;               /**< Number of the copy. Tickets with the same number share it. */
    uint64_t prefetched_address; /**< The memory of sh_prefetch_spilled(). 0: none. */
} sh_ticket_info;

/**
 * Reads a ticket.
 * @retval SH_OK The fields are written.
 * @blocks Never.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_ticket_get_info(sh_spiller* spiller, sh_ticket ticket, sh_ticket_info* out_info);

/**
 * Brings a tensor back. Work that is queued on `stream` after this call sees the bytes. The element whose indices are
 * all 0 is at `address` + sh_ticket_info.offset. The tensor may be restored several times.
 * @param address Address of sh_ticket_info.bytes bytes of device memory that belong to `stream`: work that is queued
 *                there now may still use them. Give the memory of the ticket's prefetch if there is one: the copy under
 *                way is then the restore. The memory is not used with SH_KEPT. Memory of a prefetch still belongs to
 *                the prefetch if other memory is given here. No copy writes to the memory at `address` after an error
 *                other than SH_ERROR_DEVICE_LOST.
 * @retval SH_OK                     The memory at `address` has the bytes, in the order of `stream`. The caller owns
 *                                   this memory as before.
 * @retval SH_KEPT                   The memory of sh_spill() has the bytes. The tensor stays from now on, and
 *                                   sh_spiller_collect() will not name it.
 * @retval SH_ERROR_INVALID_ARGUMENT `address` is 0 and the tensor is away; or it is no multiple of 16 and the tensor
 *                                   has left packed (SH_SPILLER_PACK).
 * @retval SH_ERROR_CHECKSUM         The restored bytes differ. Only with SH_SPILLER_CHECKSUMS.
 * @retval SH_ERROR_UNSUPPORTED      The stream captures a graph.
 * @retval SH_ERROR_BACKEND          The driver failed now, or the copy to the host failed. A later call tries again.
 * @retval SH_ERROR_DEVICE_LOST      The driver cannot tell when the copy ends. The copy may write to this memory at any
 *                                   later time.
 * @blocks Never, except with SH_STREAM_HOST, with SH_SPILLER_CHECKSUMS, and for copies that are not pinned.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_restore(sh_spiller* spiller, sh_ticket ticket, uint64_t address, sh_stream stream);

/**
 * Names the tickets that will be restored next, in order, as far as to_device_bytes and to_device_copies allow. These
 * tickets are away, and not prefetched. The order is that of the last step, or the reverse of the order of saving if no
 * step has shown a better one. Tickets that share a copy are named once. Tickets that sh_spiller_collect() has not
 * named yet are left out. Tickets of earlier steps are left out, too, because no order is known for them.
 *
 * With SH_SPILLER_KEEP_BYTES or watermarks, the tensors on the device are used first, and the memory that they free is
 * room for the tensors that are away. So tickets are named as long as the limits are kept and `used_bytes` stays below
 * its highest value of the step. Tickets are named in any case if at most to_device_bytes are left to use before them.
 * Call this function at each sh_restore(), even for tensors that stayed.
 * @param used_bytes Device memory in use now, as sh_saved_tensor.used_bytes. 0: not known. Only tickets that are needed
 *                   soon are named then.
 * @param tickets    Receives at most `capacity` tickets.
 * @param out_count  Number of tickets that were written.
 * @retval SH_OK The tickets are named.
 * @blocks Never.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_spiller_get_upcoming(sh_spiller* spiller, uint64_t used_bytes, sh_ticket* tickets,
                                                       uint64_t capacity, uint64_t* out_count);

/**
 * Begins to bring tensors back into memory of the caller. sh_restore() with the same address completes the restore.
 * Tickets that are not away, or are prefetched already, are left out: their memory is not used, and stays the caller's.
 * A ticket that was restored before is still away, and its copy writes to its memory. So a thread that names tickets of
 * other threads lets no restore take this memory before this function has returned.
 * @param tickets   `count` tickets. Copies are queued in this order.
 * @param addresses One address for each ticket, never 0, of sh_ticket_info.bytes bytes of device memory that belong to
 *                  `stream`. The caller keeps the memory until sh_restore() has taken it, or until the last ticket of
 *                  the copy has ended. The memory belongs to the copy: any one ticket of the copy may be restored with
 *                  it, but only once in all.
 * @param stream    Must exist as long as this memory belongs to the prefetch.
 * @retval SH_OK                     The copies are queued.
 * @retval SH_ERROR_INVALID_ARGUMENT An address is 0, or is no multiple of 16 and its tensor has left packed; or a list
 *                                   is NULL. No copy is queued.
 * @retval SH_ERROR_UNSUPPORTED      The stream captures a graph.
 * @retval SH_ERROR_BACKEND          The driver failed. Copies that were queued go on: sh_ticket_get_info() tells.
 * @retval SH_ERROR_DEVICE_LOST      The driver cannot tell when a copy ends. The copy may write to its memory at any
 *                                   later time.
 * @blocks Never, except for copies that are not pinned.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_prefetch_spilled(sh_spiller* spiller, const sh_ticket* tickets,
                                                   const uint64_t* addresses, uint64_t count, sh_stream stream);

/**
 * Ends a ticket. The caller may then give back the memory of its sh_spill() and of its prefetch: the streams of these
 * calls wait for copies that still use the memory. If other tickets share the copy, the memory belongs to the copy
 * until the last of these tickets has ended, or until sh_spiller_collect() has named it. The stream of each of these
 * tickets waits once for a copy to the host that is under way, when the last ticket that was saved on it ends. Tickets
 * that have ended and tickets of another spiller are an error.
 * @retval SH_OK                The ticket has ended.
 * @retval SH_ERROR_DEVICE_LOST The driver cannot tell when the copies that use this memory end. The ticket has ended,
 *                              and the caller keeps the memory.
 * @blocks Never, except for SH_STREAM_HOST, for the default stream of another thread, for copies that are not pinned,
 *         and after an error of the driver.
 * \since 0.2
 */
SH_API sh_status sh_ticket_release(sh_spiller* spiller, sh_ticket ticket);

/** Counters since the spiller was created. The fields from kept_bytes to used_peak_bytes are values of this moment. */
typedef struct sh_spiller_stats {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t steps;           /**< Steps that have ended. */
    uint64_t saved;           /**< Tensors saved. */
    uint64_t spilled;         /**< Tickets that have left, or that share a copy that has left. */
    uint64_t restored;        /**< Restores of such tickets. */
    uint64_t shared;          /**< Tensors that took no copy of their own. */
    uint64_t spill_bytes;     /**< Bytes copied to the host. */
    uint64_t restore_bytes;   /**< Bytes copied to the device. */
    uint64_t prefetched;      /**< Copies that sh_prefetch_spilled() began. */
    uint64_t stall_count;     /**< Waits of the engine's streams for a copy that had not ended. */
    uint64_t stall_ns;        /**< Time of these waits. */
    uint64_t pool_hits;       /**< Spills into pinned memory. */
    uint64_t pool_misses;     /**< Spills into memory that is not pinned, because no buffer was free. */
    uint64_t failed_spills;   /**< Tensors that stayed because their copy failed. */
    uint64_t kept_bytes;      /**< Saved bytes that stay on the device. */
    uint64_t leaving_bytes;   /**< Saved bytes on the device that sh_spiller_collect() has not named yet. */
    uint64_t away_bytes;      /**< Bytes that host memory has. */
    uint64_t away_peak_bytes; /**< The most of away_bytes and leaving_bytes together. */
    uint64_t pool_bytes;      /**< Pinned memory of the pool. */
    uint64_t unpinned_bytes;  /**< Host memory of the spills that pool_misses counts. */
    /** The most device memory in use that sh_spill() saw in the step, or in the last step. */
    uint64_t used_peak_bytes;
    uint64_t packed_bytes; /**< The part of spill_bytes that has left packed. */
} sh_spiller_stats;

/**
 * Reads the counters.
 * @retval SH_OK The counters are written.
 * @blocks Never.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_spiller_get_stats(sh_spiller* spiller, sh_spiller_stats* out_stats);

/**
 * Unpins and frees the buffers that hold no tensor.
 * @param out_bytes The pinned memory that was freed, also after an error. May be NULL.
 * @retval SH_OK                The buffers are freed.
 * @retval SH_ERROR_BACKEND     The driver does not tell when copies that use some buffers end: these are not freed. A
 *                              later call tries again.
 * @retval SH_ERROR_DEVICE_LOST The same.
 * @blocks Until copies out of these buffers have ended, and while the system unpins the memory.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_spiller_trim(sh_spiller* spiller, uint64_t* out_bytes);

#ifdef __cplusplus
}
#endif

#endif
