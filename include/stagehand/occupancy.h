/*
 * Occupancy: an engine's own device memory, which leaves the device and comes back at the same addresses.
 *
 *     sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
 *     options.tag = "weights";
 *     sh_alloc(device, bytes, &options, &address);
 *     ...                             // the engine computes
 *     sh_pause(device, NULL, NULL);   // the driver has the memory, and host memory the contents
 *     ...                             // others use the device
 *     sh_resume(device, NULL, NULL);  // the same contents at the same address
 *     ...
 *     sh_free(device, address);
 *
 * The engine allocates device memory with sh_alloc(), and gives each allocation a tag, for example "weights" or
 * "kv_cache". sh_pause() puts the contents of tags into host memory and gives their device memory back to the driver.
 * The addresses stay reserved. sh_resume() takes device memory again, at the same addresses and with the same contents.
 * Graphs and pointers of the engine stay valid. Registrations of this memory by other processes or other devices do not
 * stay valid. The engine ends them before sh_pause() and makes them again after sh_resume(). Callbacks of
 * sh_occupancy_add_callbacks() can do that.
 *
 * Host memory keeps the contents after sh_resume(), too. The next sh_pause() copies only contents that have changed
 * since then: the device compares its contents by hashes of 128 bits.
 *
 * A runtime of the device is a tag as well: "runtime:" and its name, the two together cut to 63 bytes. Runtimes of one
 * name have one tag. Blocks have sources, so their contents are never put into host memory. Contents that the engine
 * has changed (sh_mark_dirty()) go to the sources first. After sh_resume() the blocks are loaded again, at the same
 * addresses, in the order of their use. sh_step_begin(), sh_acquire(), sh_prefetch(), sh_plan(), sh_guest_begin(),
 * sh_capture_begin() and sh_graph_enter() return SH_ERROR_INVALID_STATE while a runtime is released. Graphs that were
 * captured before can be launched after sh_resume().
 *
 * A tag is running, releasing, released, or resuming. A running tag is lost if the device is lost
 * (SH_ERROR_DEVICE_LOST). After any other failure each tag is running or released, with all its contents:
 * sh_occupancy_get_info() tells which. A tag exists from its first allocation until the last sh_device_close(), which
 * frees all memory of sh_alloc(), even if runtimes still exist. The tag of a runtime exists as long as the runtime.
 *
 * The memory counts against the budget of the device. An allocation makes the runtimes of the device give memory up.
 * sh_pause() leaves the memory to them, and sh_resume() takes it again.
 *
 * Only one call of sh_alloc(), sh_free(), sh_pause(), sh_resume(), sh_occupancy_read(), sh_occupancy_trim() or
 * sh_occupancy_add_callbacks() runs at a time on each device. Further calls wait until it has ended. None of them may
 * be called by a function that runs on a stream, nor by a callback that the library calls on behalf of one of them.
 */
#ifndef STAGEHAND_OCCUPANCY_H
#define STAGEHAND_OCCUPANCY_H

#include "base.h"
#include "source.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Fate of the contents of an allocation while its tag is released. */
enum {
    /** SH_CONTENTS_STAGE for sh_alloc(). For sh_pause(): as each allocation says. */
    SH_CONTENTS_DEFAULT = 0,
    SH_CONTENTS_STAGE = 1, /**< Host memory keeps them. They come back bit for bit. */
    SH_CONTENTS_DROP = 2,  /**< They are lost. The contents are undefined after sh_resume(). */
    SH_CONTENTS_ZERO = 3,  /**< They are lost. All bytes are 0 after sh_resume(). */
    SH_CONTENTS_FILE = 4   /**< A file keeps them: see sh_pause_options.folder. They come back bit for bit. */
};

/** Flags of sh_alloc(). */
enum {
    /** The engine does not change the contents any more after a sh_pause() that puts them into host memory or a file,
        even if that call fails. Later calls do not look at contents that host memory still has. A change that the
        engine makes to them all the same may be lost in a pause, unless the flags of the pause have
        SH_OCCUPANCY_COPY_ALL. The promise ends when a pause drops or zeroes the contents. */
    SH_ALLOC_CONST = 1
};

/** How sh_alloc() allocates. */
typedef struct sh_alloc_options {
    uint32_t struct_size;
    uint32_t contents; /**< SH_CONTENTS_* */
    const char* tag;   /**< 1 to 63 bytes, and not the tag of a runtime. NULL: "default". */
    uint32_t flags;    /**< SH_ALLOC_* */
    /** SH_FORMAT_* of most elements of the contents: they cross the link packed in pauses, without loss. 0: as they
        are. A device that does not pack copies them as they are. @experimental \since 0.2 */
    uint32_t format;
} sh_alloc_options;

#define SH_ALLOC_OPTIONS_INIT \
    { sizeof(sh_alloc_options), 0, 0, 0, 0 }
static inline void sh_alloc_options_init(sh_alloc_options* options) {
    const sh_alloc_options initial = SH_ALLOC_OPTIONS_INIT;
    *options = initial;
}

/**
 * Allocates device memory. Its contents are undefined. Allocations share chunks of 2 to 512 MiB with others of the same
 * tag, `contents`, flags and format, unless they are large for that. A chunk goes back to the driver when all its
 * allocations are freed. Large allocations take whole pages.
 * @param bytes       At least 1.
 * @param options     NULL: defaults.
 * @param out_address Device address of the memory: a multiple of 512 on devices that map memory by pages, and of 256 on
 *                    others. The host may cast it to a pointer if the device has SH_DEVICE_HOST_ADDRESSABLE. The memory
 *                    belongs to the caller, who returns it with sh_free().
 * @retval SH_OK                     The memory is there.
 * @retval SH_ERROR_INVALID_ARGUMENT `bytes` is 0, or an option is out of range. The text names the option.
 * @retval SH_ERROR_INVALID_STATE    The tag is released: resume it first.
 * @retval SH_ERROR_BUDGET           The budget of the device leaves too little. The text names the figures.
 * @retval SH_ERROR_BUSY             Runtimes hold part of the memory until their steps and views end.
 * @retval SH_ERROR_BACKEND          The driver failed.
 * @blocks While runtimes give memory up, and while another call of this header runs on the device.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_alloc(sh_device* device, uint64_t bytes, const sh_alloc_options* options,
                                        uint64_t* out_address);

/**
 * Frees memory of sh_alloc(). The call first waits until all work on the device that was queued before has ended, as
 * cudaFree() does, if the memory's tag runs. The caller waits before this call if the backend cannot wait for that work
 * (see sh_pause()). The call waits for nothing if the tag is released, and the contents in host memory are lost.
 * @param address From sh_alloc(). 0 is ignored.
 * @retval SH_OK                     The memory is freed.
 * @retval SH_ERROR_INVALID_ARGUMENT No allocation begins at this address.
 * @retval SH_ERROR_BACKEND          The driver failed to wait. Nothing is freed.
 * @blocks Until the work has ended, and while another call of this header runs on the device.
 * \since 0.2
 */
SH_API sh_status sh_free(sh_device* device, uint64_t address);

enum {
    /** The call returns SH_ERROR_BUSY instead of waiting for another call of this header. */
    SH_OCCUPANCY_NO_WAIT = 1,
    /** Tags that are released already (for sh_pause()), or that run already (for sh_resume()), are left out. So a call
        may be repeated. */
    SH_OCCUPANCY_REPEAT = 2,
    /** For sh_pause(): all contents that are staged are copied, and not compared with the contents in host memory. */
    SH_OCCUPANCY_COPY_ALL = 4,
    /** For sh_pause(): host memory that is taken now is not pinned. Contents go through a few pinned buffers, at the
        speed at which the processors copy. Memory that is pinned already stays pinned. */
    SH_OCCUPANCY_UNPINNED = 8,
    /** For sh_pause(): nothing is paused. Threads of the library begin to pin the host memory that a sh_pause() with
        the same other options will need, and the call returns: all fields of `out_change` are 0. That sh_pause() uses
        the memory that is pinned by then, and pins the rest. sh_occupancy_info tells how much there is. Allocations
        that are made later are not included. sh_free() and sh_occupancy_trim() end the preparation of memory that they
        free. Preparations that were begun before go on if the machine or the cgroup has too little memory left for this
        one (SH_ERROR_OUT_OF_HOST_MEMORY). */
    SH_OCCUPANCY_PREPARE = 16
};

/** Device memory: a plain value without struct_size, which never grows. */
typedef struct sh_memory_range {
    uint64_t address;
    uint64_t bytes;
} sh_memory_range;

/** The tags that sh_pause() releases, and how it releases them. */
typedef struct sh_pause_options {
    uint32_t struct_size;
    uint32_t flags;          /**< SH_OCCUPANCY_* */
    const char* const* tags; /**< `tag_count` tags. */
    uint64_t tag_count;      /**< 0: all tags that run, of which there may be none. */
    uint32_t contents;       /**< SH_CONTENTS_*, in place of the allocations' own values. */
    uint32_t format;         /**< SH_FORMAT_*, in place of the allocations' own values. 0: as each allocation says.
                                  \since 0.2 */
    /** `unused_count` ranges whose contents the engine does not need, in any order. Host memory does not keep the pages
        of up to 2 MiB that lie wholly inside the ranges. The contents of the ranges are undefined after the call, even
        if it fails. Memory that the call does not pause is ignored. */
    const sh_memory_range* unused;
    uint64_t unused_count;
    /** The folder of files that keep contents (SH_CONTENTS_FILE): a path, not empty. NULL: the folder that the
        environment names in TMPDIR, or /var/tmp if TMPDIR is not set. Contents of other allocations also go to files if
        `folder` is not NULL and the machine or the cgroup has too little memory for them. The files have no names, and
        exist no longer than the process. */
    const char* folder;
    /** Host memory that contents of all tags may take together. Further allocations go to files, even if `folder` is
        NULL. 0: no limit. */
    uint64_t host_bytes;
} sh_pause_options;

#define SH_PAUSE_OPTIONS_INIT \
    { sizeof(sh_pause_options), 0, 0, 0, 0, 0, 0, 0, 0, 0 }
static inline void sh_pause_options_init(sh_pause_options* options) {
    const sh_pause_options initial = SH_PAUSE_OPTIONS_INIT;
    *options = initial;
}

/** The tags that sh_resume() brings back. */
typedef struct sh_resume_options {
    uint32_t struct_size;
    uint32_t flags;          /**< SH_OCCUPANCY_NO_WAIT and SH_OCCUPANCY_REPEAT. */
    const char* const* tags; /**< `tag_count` tags. */
    uint64_t tag_count;      /**< 0: all tags that are released, of which there may be none. */
} sh_resume_options;

#define SH_RESUME_OPTIONS_INIT \
    { sizeof(sh_resume_options), 0, 0, 0 }
static inline void sh_resume_options_init(sh_resume_options* options) {
    const sh_resume_options initial = SH_RESUME_OPTIONS_INIT;
    *options = initial;
}

/** The result of sh_pause() or sh_resume(). */
typedef struct sh_occupancy_change {
    uint32_t struct_size;
    uint32_t tag_count;    /**< Tags that were released, or resumed. */
    uint64_t device_bytes; /**< Device memory that was given back, or taken. */
    uint64_t copied_bytes; /**< Bytes of contents that were copied, in whole pages of up to 2 MiB. */
    uint64_t ns;           /**< Time of the call, by the clock of the device. */
    /** sh_pause(): contents that were not copied, because host memory or a file still has them. sh_resume(): 0. */
    uint64_t unchanged_bytes;
    uint64_t packed_bytes; /**< The part of copied_bytes that crossed the link packed, as they are in device memory: see
                                sh_alloc_options.format. \since 0.2 */
} sh_occupancy_change;

/**
 * Releases tags. The call waits until all work on the device that was queued before has ended, on every stream. It then
 * copies the contents to host memory or files, and gives device memory back as soon as its copy has ended. The driver
 * has the memory when the call returns. The engine must not use the addresses until sh_resume(). The tags keep running
 * if there is too little host memory for the contents (SH_ERROR_OUT_OF_HOST_MEMORY), or too little room in the folder
 * (SH_ERROR_IO).
 *
 * The engine must not queue work that uses the tags before the call has returned. A stream that captures a graph
 * meanwhile may make the call fail, and the driver may end the capture.
 *
 * The host memory is pinned. Contents go through pinned buffers if the system refuses to pin it. The library keeps the
 * memory for the next sh_pause(), until sh_occupancy_trim(). Contents that the memory still has from the previous pause
 * are not copied again. The device recognises such contents by a hash of 128 bits of each page of up to 2 MiB. A device
 * that cannot hash copies everything.
 *
 * Contents of a known format (sh_alloc_options.format) cross the link packed if programs on the device pack them and
 * the host memory is pinned. They take the same host memory and 2 KiB more for each 2 MiB (bf16 and
 * fp16; 4 KiB in fp8, 1 KiB in fp32). Pages of another size than a multiple of 8,192 elements leave as they are. The
 * driver translates the programs in the first pause that packs. Contents are copied again, and host memory is pinned
 * again, if a pause names a format for which the memory of the pause before has no room.
 * @param options    NULL: all tags that run.
 * @param out_change May be NULL.
 * @retval SH_OK                     The tags are released.
 * @retval SH_ERROR_NOT_FOUND        There is no tag of that name. The text has the name.
 * @retval SH_ERROR_INVALID_STATE    A tag that was named is released already. The text has the name. Or the calling
 *                                   thread uses blocks of a runtime, and has to end that first: the text names a step
 *                                   that is under way, views that are held, or a graph that is entered or captured.
 * @retval SH_ERROR_INVALID_ARGUMENT An option is out of range. The text names the option.
 * @retval SH_ERROR_BUSY             Other threads use blocks of a runtime in this way. Or another call runs, and the
 *                                   flags have SH_OCCUPANCY_NO_WAIT.
 * @retval SH_ERROR_CALLBACK         A callback refused the pause. The text has its message.
 * @retval SH_ERROR_IO               A file could not be made or written. The text has the folder. The tags run.
 * @retval SH_ERROR_UNSUPPORTED      The device does not map memory by pages, or its backend cannot wait for all work.
 * @retval SH_ERROR_BACKEND          The driver failed. The text tells whether the tags run, or are released with all
 *                                   their contents.
 * @blocks Until the work and the copies have ended, and while another call of this header runs on the device.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_pause(sh_device* device, const sh_pause_options* options,
                                        sh_occupancy_change* out_change);

/**
 * Brings released tags back, at the same addresses and with the same contents. All tags of a call come back together,
 * or none does. The contents come in the order in which the options name the tags, so the most urgent tag is named
 * first. The contents are on the device when the call returns. The tags stay released, with their contents, if the call
 * fails, and the call may be tried again.
 *
 * A runtime with captured graphs takes the same memory as before, so that the graphs stay valid. A runtime without
 * graphs makes a new plan for its share.
 * @param options    NULL: all tags that are released.
 * @param out_change May be NULL.
 * @retval SH_OK                     The tags run.
 * @retval SH_ERROR_NOT_FOUND        There is no tag of that name. The text has the name.
 * @retval SH_ERROR_INVALID_STATE    A tag that was named is not released. The text has the name.
 * @retval SH_ERROR_INVALID_ARGUMENT An option is out of range. The text names the option.
 * @retval SH_ERROR_BUDGET           The budget of the device leaves too little. The text names the figures.
 * @retval SH_ERROR_BUSY             Runtimes hold part of the memory until their steps and views end. Or another
 *                                   call runs, and the flags have SH_OCCUPANCY_NO_WAIT.
 * @retval SH_ERROR_IO               A file that keeps contents could not be read. The text has its folder.
 * @retval SH_ERROR_BACKEND          The driver failed.
 * @blocks Until the copies have ended, while runtimes give memory up, and while another call of this header runs on the
 *         device.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_resume(sh_device* device, const sh_resume_options* options,
                                         sh_occupancy_change* out_change);

/** States of a tag. */
enum {
    SH_OCCUPANCY_RUNNING = 0,
    SH_OCCUPANCY_RELEASING = 1,
    SH_OCCUPANCY_RELEASED = 2,
    SH_OCCUPANCY_RESUMING = 3,
    SH_OCCUPANCY_MIXED = 4, /**< Of several tags or runtimes together: they are in different states. */
    SH_OCCUPANCY_LOST = 5   /**< The contents are gone. The tag can only be freed, and the runtime only destroyed. */
};

/** A tag, or all tags of a device together. */
typedef struct sh_occupancy_info {
    uint32_t struct_size;
    uint32_t state;        /**< SH_OCCUPANCY_*. SH_OCCUPANCY_RUNNING if there is no tag. */
    char tag[64];          /**< Empty for all tags together. */
    uint64_t allocations;  /**< Number of allocations. For a runtime: of blocks. */
    uint64_t bytes;        /**< Sum of their sizes, as the engine asked for them. */
    uint64_t device_bytes; /**< Device memory that they hold. During a sh_pause() or sh_resume(): before that call. */
    uint64_t staged_bytes; /**< Contents that only host memory or a file has, in whole pages of up to 2 MiB. During a
                                sh_resume(): contents that are not back yet. */
    uint64_t host_bytes;   /**< Host memory that is kept for contents, staged or not. */
    uint64_t pinned_bytes; /**< The part of host_bytes that is pinned. */
    uint64_t cycles;       /**< How often sh_resume() brought the tag back. For all tags: the sum. */
    uint64_t file_bytes;   /**< Room in files that is kept for contents, staged or not. */
} sh_occupancy_info;

/**
 * Reads the state and the figures of a tag.
 * @param tag NULL: all tags together.
 * @retval SH_OK              The struct is written.
 * @retval SH_ERROR_NOT_FOUND There is no tag of that name.
 * @blocks Never.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_occupancy_get_info(sh_device* device, const char* tag, sh_occupancy_info* out_info);

/**
 * Lists all tags, by name.
 * @param infos     The first `capacity` tags are written here. Each element's struct_size must be set. May be NULL if
 *                  `capacity` is 0.
 * @param out_count The number of tags, which may be more than `capacity`.
 * @retval SH_OK The list is written.
 * @blocks Never.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_occupancy_list(sh_device* device, sh_occupancy_info* infos, uint64_t capacity,
                                                 uint64_t* out_count);

/**
 * Reads contents of a released tag. The tag stays released.
 * @param address      Address in an allocation whose tag is released.
 * @param bytes        At least 1. The range ends in the same allocation.
 * @param out_contents Host memory of `bytes` bytes. Bytes that host memory does not keep, because of SH_CONTENTS_ZERO
 *                     or sh_pause_options.unused, are written as 0.
 * @retval SH_OK                     The contents are written.
 * @retval SH_ERROR_INVALID_ARGUMENT `out_contents` is NULL, or the range does not lie in an allocation.
 * @retval SH_ERROR_INVALID_STATE    The tag runs or is lost, or sh_pause() has failed and left part of the contents on
 *                                   the device. The text has the name of the tag.
 * @retval SH_ERROR_NOT_FOUND        The contents were dropped. The text has the name of the tag.
 * @retval SH_ERROR_IO               The file that has the contents cannot be read.
 * @retval SH_ERROR_UNSUPPORTED      The device has no contents.
 * @blocks While another call of this header runs on the device, and while a file is read.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_occupancy_read(sh_device* device, uint64_t address, uint64_t bytes,
                                                 void* out_contents);

/**
 * Frees the host memory and the files that hold no contents now. The next sh_pause() makes them again.
 * @param out_bytes The host memory that was freed. Files do not count. May be NULL.
 * @retval SH_OK            The host memory is freed.
 * @retval SH_ERROR_BACKEND The driver cannot tell whether copies still use the memory. Nothing is freed.
 * @blocks While the system unpins the memory, and while another call of this header runs on the device.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_occupancy_trim(sh_device* device, uint64_t* out_bytes);

/**
 * The library calls this function before sh_pause() releases tags, while the tags still run. The function may begin and
 * end steps, and queue work on the device.
 * @param tags          The names of the tags, valid during the call.
 * @param out_message   A refusal puts its text here, with a 0 at its end. Empty before the call.
 * @param message_bytes Room for the text, including the 0: at least 256.
 * @return 0, or another value to refuse the pause: sh_pause() then releases nothing, and returns SH_ERROR_CALLBACK.
 */
typedef int32_t (*sh_before_pause_fn)(const char* const* tags, uint64_t tag_count, char* out_message,
                                      uint64_t message_bytes, void* user_data);
/**
 * The library calls this function when tags run again. The function can set up again whatever sh_before_pause_fn ended.
 * @param tags The names of the tags, valid during the call.
 */
typedef void (*sh_after_resume_fn)(const char* const* tags, uint64_t tag_count, void* user_data);

/**
 * Adds callbacks for pauses and resumes of a device. They run on the thread that calls sh_pause() or sh_resume(), one
 * at a time: those before a pause in the order in which they were added, those after a resume in the reverse order.
 * sh_pause() calls them before it waits for the work on the device. A sh_pause() that fails and leaves the tags running
 * calls `after_resume` of those whose `before_pause` was called and did not refuse. A call that changes no tag calls no
 * callback.
 *
 * A callback must not throw. It may call sh_occupancy_get_info() and sh_occupancy_list(), and use runtimes of the
 * device (steps and views). The other functions of this header return SH_ERROR_INVALID_STATE.
 * @param before_pause May be NULL.
 * @param after_resume May be NULL.
 * @param out_scope    sh_scope_end() removes the callbacks: they are not called any more when it has returned. A
 *                     callback that ends it gets SH_ERROR_INVALID_STATE, and they stay. NULL: they stay until the
 *                     device is closed.
 * @retval SH_OK                     The callbacks are called from now on.
 * @retval SH_ERROR_INVALID_ARGUMENT Both callbacks are NULL.
 * @retval SH_ERROR_INVALID_STATE    A callback made the call.
 * @blocks While another call of this header runs on the device.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_occupancy_add_callbacks(sh_device* device, sh_before_pause_fn before_pause,
                                                          sh_after_resume_fn after_resume, void* user_data,
                                                          sh_scope** out_scope);

#ifdef __cplusplus
}
#endif

#endif
