/* Written by bindings/python/gen_cdef.py from the headers in include/stagehand: change those, then run ./dev gen. */

#define SH_VERSION_MAJOR 0x0
#define SH_VERSION_MINOR 0x2
#define SH_VERSION_PATCH 0x0
#define SH_ABI_VERSION 0x0
#define SH_STREAM_HOST 0xffffffffffffffff
#define SH_HOST_NODE_ANY 0xffffffff

/* base.h */
typedef int32_t sh_status;
enum {
    SH_OK = 0,
    SH_NOT_READY = 1,
    SH_KEPT = 2,
    SH_ERROR_INVALID_ARGUMENT = -101,
    SH_ERROR_INVALID_HANDLE = -102,
    SH_ERROR_INVALID_STRUCT =
        -103,
    SH_ERROR_INVALID_STATE =
        -104,
    SH_ERROR_NOT_FOUND = -105,
    SH_ERROR_UNSUPPORTED = -106,
    SH_ERROR_FORKED = -107,
    SH_ERROR_STALE = -108,
    SH_ERROR_BUDGET = -201,
    SH_ERROR_OUT_OF_DEVICE_MEMORY = -202,
    SH_ERROR_OUT_OF_HOST_MEMORY = -203,
    SH_ERROR_HELD = -204,
    SH_ERROR_BUSY = -205,
    SH_ERROR_SOURCE = -301,
    SH_ERROR_CALLBACK = -302,
    SH_ERROR_IO = -303,
    SH_ERROR_CANCELLED = -304,
    SH_ERROR_CHECKSUM = -305,
    SH_ERROR_BACKEND = -401,
    SH_ERROR_BACKEND_UNAVAILABLE = -402,
    SH_ERROR_BACKEND_LOAD = -403,
    SH_ERROR_RUNTIME_LOST = -501,
    SH_ERROR_DEVICE_LOST = -502,
    SH_ERROR_INTERNAL = -601,
    SH_ERROR_DUPLICATE_LIBRARY = -602
};
typedef uint64_t sh_stream;
typedef uint64_t sh_block;
typedef struct sh_device sh_device;
typedef struct sh_runtime sh_runtime;
typedef struct sh_scope sh_scope;
sh_status sh_scope_end(sh_scope* scope);
uint32_t sh_version(void);
const char* sh_status_string(sh_status status);
uint64_t sh_last_error(char* buffer, uint64_t capacity);
enum { SH_LOG_ERROR = 1, SH_LOG_WARNING = 2, SH_LOG_INFO = 3, SH_LOG_DEBUG = 4 };
typedef void (*sh_log_fn)(int32_t level, const char* message, void* user_data);
sh_status sh_set_log(int32_t level, sh_log_fn log, void* user_data);

/* host.h */
typedef void* (*sh_host_alloc_fn)(uint64_t bytes, void* user_data);
typedef void (*sh_host_free_fn)(void* memory, uint64_t bytes, void* user_data);
enum {
    SH_HOST_SMALL_PAGES = 1,
    SH_HOST_PINNED = 2
};
typedef struct sh_host_options {
    uint32_t struct_size;
    uint32_t flags;
    uint32_t node;
    uint32_t staging_threads;
    uint64_t staging_bytes;
    const char* staging_cpus;
    sh_host_alloc_fn alloc;
    sh_host_free_fn free;
    void* user_data;
} sh_host_options;
sh_status sh_host_alloc(sh_device* device, uint64_t bytes, void** out_memory,
                                             uint32_t* out_pinned);
sh_status sh_host_free(sh_device* device, void* memory);
sh_status sh_stream_create(sh_device* device, sh_stream* out_stream);
void sh_stream_destroy(sh_device* device, sh_stream stream);
sh_status sh_stream_synchronize(sh_device* device, sh_stream stream);
typedef void (*sh_stream_fn)(void* user_data);
sh_status sh_stream_launch(sh_device* device, sh_stream stream, sh_stream_fn fn, void* user_data,
                                                int64_t busy_ns);

/* helpers.h */
enum {
    SH_HELPS_OTHERS = 1
};
typedef struct sh_helper_options {
    uint32_t struct_size;
    uint32_t flags;
    const char* devices;
} sh_helper_options;

/* device.h */
typedef struct sh_device_options {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t budget_bytes;
    uint64_t margin_bytes;
    uint64_t page_bytes;
    uint64_t link_bytes_per_second;
    const char* backend_options;
    const char* backend_path;
    void* device_memory;
    uint64_t device_memory_bytes;
    const sh_host_options* host;
    const sh_helper_options* helpers;
} sh_device_options;
sh_status sh_device_open(const char* name, const sh_device_options* options,
                                              sh_device** out_device);
void sh_device_close(sh_device* device);
typedef struct sh_memory_info {
    uint32_t struct_size;
    uint32_t runtime_count;
    uint64_t budget_bytes;
    uint64_t used_bytes;
    uint64_t peak_bytes;
    uint64_t free_bytes;
    uint64_t total_bytes;
    uint64_t page_bytes;
    uint64_t staging_bytes;
    uint64_t pinned_bytes;
    uint64_t reserved_bytes;
    uint64_t guest_bytes;
    uint64_t protected_bytes;
    uint64_t headroom_bytes;
} sh_memory_info;
sh_status sh_device_get_memory(sh_device* device, sh_memory_info* out_info);
sh_status sh_device_set_budget(sh_device* device, uint64_t budget_bytes);
enum {
    SH_DEVICE_FIXED_ADDRESSES = 1,
    SH_DEVICE_HOST_ADDRESSABLE = 2,
    SH_DEVICE_VIRTUAL_TIME = 4,
    SH_DEVICE_IS_GPU = 8
};
enum { SH_DEVICE_KIND_NONE = 0, SH_DEVICE_KIND_HOST = 1, SH_DEVICE_KIND_CUDA = 2, SH_DEVICE_KIND_ROCM = 10 };
typedef struct sh_device_caps {
    uint32_t struct_size;
    uint32_t flags;
    uint32_t kind;
    uint32_t ordinal;
    char backend[32];
    char name[64];
    char description[128];
    uint64_t granularity_bytes;
    uint64_t page_bytes;
    uint64_t staging_piece_bytes;
    uint32_t staging_threads;
    uint32_t reserved;
    uint64_t host_node;
    char bus_id[32];
} sh_device_caps;
sh_status sh_device_get_caps(sh_device* device, sh_device_caps* out_caps);
sh_status sh_device_get_clock(sh_device* device, uint64_t* out_ns);
typedef struct sh_backend_info {
    uint32_t struct_size;
    int32_t status;
    uint32_t device_count;
    uint32_t built_in;
    char name[32];
    char path[512];
    char reason[512];
} sh_backend_info;
sh_status sh_backend_list(sh_backend_info* infos, uint64_t capacity, uint64_t* out_count);

/* source.h */
enum {
    SH_SOURCE_POINTER = 1,
    SH_SOURCE_MAPPED = 2,
    SH_SOURCE_FILE = 3,
    SH_SOURCE_FILL = 4,
    SH_SOURCE_DEVICE = 5
};
enum { SH_FORMAT_BF16 = 1, SH_FORMAT_F16 = 2, SH_FORMAT_F32 = 3, SH_FORMAT_F8_E4M3 = 4, SH_FORMAT_F8_E5M2 = 5 };
typedef int32_t (*sh_fill_fn)(void* buffer, uint64_t offset, uint64_t bytes, void* user_data);
typedef struct sh_segment {
    uint32_t struct_size;
    uint32_t kind;
    uint64_t offset;
    uint64_t bytes;
    const void* pointer;
    int64_t file;
    uint64_t file_offset;
    sh_fill_fn fill;
    void* user_data;
    uint64_t packed_bytes;
    uint64_t packed_offset;
    uint32_t format;
    uint32_t reserved;
} sh_segment;
sh_status sh_unpack(const void* packed, uint64_t packed_bytes, uint64_t offset, uint64_t bytes,
                                         void* out);

/* contents.h */
sh_status sh_invalidate_blocks(sh_runtime* runtime, const sh_block* blocks, uint64_t count);
sh_status sh_source_update_begin(sh_runtime* runtime, const sh_block* blocks, uint64_t count);
sh_status sh_source_replace(sh_runtime* runtime, sh_block block, const sh_segment* segments,
                                                 uint64_t count);
sh_status sh_source_update_end(sh_runtime* runtime, const sh_block* blocks, uint64_t count);
sh_status sh_mark_dirty(sh_runtime* runtime, sh_block block);
sh_status sh_write_back(sh_runtime* runtime, const sh_block* blocks, uint64_t count);

/* runtime.h */
typedef struct sh_runtime_options {
    uint32_t struct_size;
    uint32_t max_held;
    uint64_t max_bytes;
    uint64_t unordered_bytes;
    uint64_t share_wait_ns;
    const char* name;
} sh_runtime_options;
sh_status sh_runtime_create(sh_device* device, const sh_runtime_options* options,
                                                 sh_runtime** out_runtime);
void sh_runtime_destroy(sh_runtime* runtime);
sh_status sh_runtime_synchronize(sh_runtime* runtime);
enum {
    SH_BLOCK_MUTABLE = 1,
    SH_BLOCK_WHOLE = 2,
    SH_BLOCK_UNORDERED = 4,
    SH_BLOCK_PIN = 8,
    SH_BLOCK_PACK = 16
};
typedef struct sh_loaded_range {
    uint32_t struct_size;
    uint32_t reserved;
    sh_block block;
    void* address;
    uint64_t offset;
    uint64_t bytes;
    uint64_t block_bytes;
    sh_stream stream;
} sh_loaded_range;
typedef int32_t (*sh_load_fn)(const sh_loaded_range* range, void* user_data);
typedef struct sh_block_desc {
    uint32_t struct_size;
    uint32_t flags;
    uint64_t bytes;
    const sh_segment* segments;
    uint64_t segment_count;
    sh_load_fn on_load;
    void* user_data;
    const char* name;
} sh_block_desc;
sh_status sh_register_blocks(sh_runtime* runtime, const sh_block_desc* descs, uint64_t count,
                                                  sh_block* out_blocks);
sh_status sh_unregister_blocks(sh_runtime* runtime, const sh_block* blocks, uint64_t count);
enum {
    SH_BLOCK_UNLOADED = 0,
    SH_BLOCK_STAGED = 1,
    SH_BLOCK_LOADING = 2,
    SH_BLOCK_READY = 3,
    SH_BLOCK_DRAINING = 4
};
typedef struct sh_block_state {
    uint32_t struct_size;
    uint32_t flags;
    uint32_t state;
    uint32_t held;
    void* address;
    uint64_t bytes;
    uint64_t
        resident_bytes;
    uint64_t streamed_bytes;
    uint64_t present_bytes;
    uint64_t serial;
    uint64_t protections;
    char name[64];
} sh_block_state;
sh_status sh_block_get_state(sh_runtime* runtime, sh_block block, sh_block_state* out_state);
typedef struct sh_use {
    uint32_t struct_size;
    uint32_t reserved;
    sh_block block;
    uint64_t compute_ns;
} sh_use;
sh_status sh_set_schedule(sh_runtime* runtime, const sh_use* uses, uint64_t count);
enum {
    SH_PLAN_DRY_RUN = 1,
    SH_PLAN_DROP_GRAPHS = 2
};
typedef struct sh_plan_options {
    uint32_t struct_size;
    uint32_t flags;
    uint64_t budget_bytes;
    uint64_t link_bytes_per_second;
} sh_plan_options;
typedef struct sh_plan_info {
    uint32_t struct_size;
    uint32_t max_held;
    uint64_t model_bytes;
    uint64_t budget_bytes;
    uint64_t resident_bytes;
    uint64_t ring_bytes;
    uint64_t unordered_bytes;
    uint64_t smallest_budget_bytes;
    sh_block smallest_budget_block;
    uint64_t bytes_per_step;
    uint64_t bound_bytes_per_step;
    uint64_t step_ns;
    uint64_t bound_ns;
    uint64_t compute_ns;
    uint64_t link_bytes_per_second;
    uint64_t scheduled_blocks;
    uint64_t resident_blocks;
    uint64_t streamed_blocks;
    uint64_t padding_bytes;
    uint64_t plan_bound_ns;
    uint64_t packed_resident_bytes;
    uint64_t unpack_bytes;
    uint64_t unpack_bytes_per_second;
} sh_plan_info;
sh_status sh_plan(sh_runtime* runtime, const sh_plan_options* options, sh_plan_info* out_info);

/* parts.h */
typedef struct sh_part_options {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t unit_bytes;
    uint64_t largest_bytes;
} sh_part_options;
typedef struct sh_part {
    uint32_t struct_size;
    uint32_t reserved;
    sh_block block;
    uint64_t offset;
    uint64_t bytes;
} sh_part;
sh_status sh_register_parts(sh_runtime* runtime, const sh_block_desc* desc,
                                                 const sh_part_options* options, sh_part* out_parts, uint64_t capacity,
                                                 uint64_t* out_count);

/* streaming.h */
enum {
    SH_VIEW_HIT = 1,
    SH_VIEW_FIXED_ADDRESS = 2,
    SH_VIEW_REMAPPED = 4,
    SH_VIEW_WAITED = 8
};
typedef struct sh_view {
    uint32_t struct_size;
    uint32_t flags;
    sh_block block;
    void* address;
    uint64_t bytes;
    uint64_t serial;
} sh_view;
enum {
    SH_ACQUIRE_NO_WAIT = 1
};
sh_status sh_step_begin(sh_runtime* runtime, const char* kind);
typedef struct sh_kind_info {
    uint32_t struct_size;
    uint32_t reserved;
    char name[64];
    uint64_t steps;
    uint64_t compute_ns;
} sh_kind_info;
sh_status sh_kind_list(sh_runtime* runtime, sh_kind_info* infos, uint64_t capacity,
                                            uint64_t* out_count);
sh_status sh_step_end(sh_runtime* runtime);
sh_status sh_acquire(sh_runtime* runtime, sh_block block, sh_stream stream, uint32_t flags,
                                          sh_view* out_view);
sh_status sh_acquire_many(sh_runtime* runtime, const sh_block* blocks, uint64_t count,
                                               sh_stream stream, uint32_t flags, sh_view* out_views);
sh_status sh_release(sh_runtime* runtime, sh_block block, sh_stream stream);
sh_status sh_prefetch(sh_runtime* runtime, const sh_block* blocks, uint64_t count);
sh_status sh_read_block(sh_runtime* runtime, sh_block block, sh_stream stream, uint64_t offset,
                                             void* buffer, uint64_t bytes);
sh_status sh_verify_block(sh_runtime* runtime, sh_block block, sh_stream stream);
sh_status sh_stream_forget(sh_runtime* runtime, sh_stream stream);

/* members.h */
typedef uint64_t sh_set;
typedef struct sh_set_options {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t call_members;
    uint64_t group_members;
    uint64_t slots;
    uint64_t stride;
    const char* name;
} sh_set_options;
sh_status sh_set_create(sh_runtime* runtime, const sh_set_options* options,
                                             const sh_block_desc* members, uint64_t count, sh_block* out_blocks,
                                             sh_set* out_set);
sh_status sh_set_destroy(sh_runtime* runtime, sh_set set);
typedef struct sh_set_info {
    uint32_t struct_size;
    uint32_t reserved;
    void* address;
    uint64_t stride;
    uint64_t slots;
    uint64_t members;
    uint64_t uses;
    uint64_t hits;
    uint64_t evictions;
} sh_set_info;
sh_status sh_set_get_info(sh_runtime* runtime, sh_set set, sh_set_info* out_info);
sh_status sh_acquire_members(sh_runtime* runtime, sh_set set, const uint32_t* members,
                                                  uint64_t count, sh_stream stream, uint32_t flags, sh_view* out_pool,
                                                  uint32_t* out_slots);
sh_status sh_release_members(sh_runtime* runtime, sh_set set, const uint32_t* members,
                                                  uint64_t count, sh_stream stream);
sh_status sh_prefetch_members(sh_runtime* runtime, sh_set set, const uint32_t* members,
                                                   const float* chances, uint64_t count);

/* residency.h */
sh_status sh_protect_blocks(sh_runtime* runtime, const sh_block* blocks, uint64_t count,
                                                 sh_scope** out_scope);
sh_status sh_keep_resident(sh_runtime* runtime, sh_scope** out_scope);
enum {
    SH_PRIORITY_PRIMARY = 0,
    SH_PRIORITY_SECONDARY = 1
};
sh_status sh_reserve(sh_runtime* runtime, uint64_t bytes, uint32_t priority, sh_scope** out_scope);
enum {
    SH_GUEST_SHRINK = 1
};
typedef struct sh_guest_options {
    uint32_t struct_size;
    uint32_t flags;
    uint64_t bytes;
    uint64_t workspace_bytes;
    uint64_t wait_ns;
} sh_guest_options;
sh_status sh_guest_begin(sh_runtime* guest, const sh_guest_options* options, sh_scope** out_scope);
sh_status sh_trim(sh_runtime* runtime, uint64_t keep_bytes, uint64_t* out_bytes);
typedef void (*sh_pressure_fn)(sh_runtime* runtime, uint64_t bytes, void* user_data);
sh_status sh_set_pressure(sh_runtime* runtime, sh_pressure_fn pressure, void* user_data);

/* graph.h */
typedef struct sh_graph sh_graph;
sh_status sh_capture_begin(sh_runtime* runtime, sh_stream stream);
sh_status sh_capture_end(sh_runtime* runtime, sh_stream stream, sh_graph** out_graph);
sh_status sh_graph_enter(sh_graph* graph, sh_stream stream);
sh_status sh_graph_leave(sh_graph* graph, sh_stream stream);
void sh_graph_destroy(sh_graph* graph);

/* activations.h */
enum {
    SH_ACTIVATION_CHEAP = 1
};
typedef struct sh_activation {
    uint32_t struct_size;
    uint32_t flags;
    uint64_t bytes;
    uint64_t produced_ns;
    uint64_t released_ns;
    uint64_t first_use_ns;
    uint64_t last_use_ns;
    uint64_t recompute_ns;
    const uint32_t* inputs;
    uint64_t input_count;
} sh_activation;
typedef struct sh_memory_point {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t ns;
    uint64_t bytes;
} sh_memory_point;
typedef struct sh_training_step {
    uint32_t struct_size;
    uint32_t reserved;
    const sh_activation* activations;
    uint64_t activation_count;
    const sh_memory_point* others;
    uint64_t other_count;
    uint64_t forward_end_ns;
    uint64_t end_ns;
    uint64_t to_host_bytes_per_second;
    uint64_t to_device_bytes_per_second;
    uint64_t other_to_host_bytes_per_second;
    uint64_t other_to_device_bytes_per_second;
    uint64_t copy_latency_ns;
    uint64_t to_host_bytes;
    uint64_t to_device_bytes;
    uint64_t least_bytes;
    uint64_t target_peak_bytes;
    uint64_t target_step_ns;
} sh_training_step;
enum {
    SH_FATE_KEEP = 0,
    SH_FATE_SPILL = 1,
    SH_FATE_RECOMPUTE = 2
};
typedef struct sh_activation_plan {
    uint32_t struct_size;
    uint32_t meets_target;
    uint64_t step_ns;
    uint64_t peak_bytes;
    uint64_t plain_peak_bytes;
    uint64_t recompute_ns;
    uint64_t kept_bytes;
    uint64_t spilled_bytes;
    uint64_t recomputed_bytes;
    uint64_t least_step_ns;
    uint64_t least_peak_bytes;
} sh_activation_plan;
sh_status sh_plan_activations(const sh_training_step* step, uint32_t* out_fates,
                                                   sh_activation_plan* out_plan);
sh_status sh_simulate_activations(const sh_training_step* step, const uint32_t* fates,
                                                       sh_activation_plan* out_plan, sh_memory_point* out_points,
                                                       uint64_t capacity, uint64_t* out_count);

/* spill.h */
typedef struct sh_spiller sh_spiller;
typedef uint64_t sh_ticket;
enum {
    SH_SPILLER_KEEP_BYTES = 1,
    SH_SPILLER_CHECKSUMS = 2,
    SH_SPILLER_PACK = 4
};
typedef struct sh_spill_class {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t bytes;
    uint64_t count;
} sh_spill_class;
typedef struct sh_spiller_options {
    uint32_t struct_size;
    uint32_t flags;
    uint64_t high_watermark_bytes;
    uint64_t low_watermark_bytes;
    uint64_t keep_bytes;
    uint64_t least_bytes;
    uint64_t to_host_bytes;
    uint64_t to_device_bytes;
    uint32_t to_host_copies;
    uint32_t to_device_copies;
    uint64_t pool_bytes;
    const sh_spill_class* classes;
    uint64_t class_count;
} sh_spiller_options;
sh_status sh_spiller_create(sh_device* device, const sh_spiller_options* options,
                                                 sh_spiller** out_spiller);
void sh_spiller_destroy(sh_spiller* spiller);
sh_status sh_spiller_begin_step(sh_spiller* spiller, uint64_t step);
sh_status sh_spiller_end_step(sh_spiller* spiller);
typedef struct sh_saved_tensor {
    uint32_t struct_size;
    uint32_t element_bytes;
    uint64_t address;
    uint64_t dimensions;
    const int64_t* sizes;
    const int64_t* strides;
    uint64_t storage_address;
    uint64_t
        storage_bytes;
    uint64_t storage_key;
    uint64_t used_bytes;
    uint32_t format;
    uint32_t reserved;
} sh_saved_tensor;
enum {
    SH_SPILL_NOW = 1,
    SH_SPILL_KEEP = 2,
};
sh_status sh_spill(sh_spiller* spiller, const sh_saved_tensor* tensor, sh_stream stream,
                                        uint32_t flags, sh_ticket* out_ticket);
enum { SH_COLLECT_ALL = 1  };
sh_status sh_spiller_collect(sh_spiller* spiller, sh_stream stream, uint32_t flags,
                                                  sh_ticket* tickets, uint64_t capacity, uint64_t* out_count);
enum {
    SH_TICKET_KEPT = 1,
    SH_TICKET_LEAVING = 2,
    SH_TICKET_AWAY = 3,
    SH_TICKET_PREFETCHED =
        4
};
typedef struct sh_ticket_info {
    uint32_t struct_size;
    uint32_t state;
    uint64_t bytes;
    uint64_t offset;
    uint64_t copy;
    uint64_t prefetched_address;
} sh_ticket_info;
sh_status sh_ticket_get_info(sh_spiller* spiller, sh_ticket ticket, sh_ticket_info* out_info);
sh_status sh_restore(sh_spiller* spiller, sh_ticket ticket, uint64_t address, sh_stream stream);
sh_status sh_spiller_get_upcoming(sh_spiller* spiller, uint64_t used_bytes, sh_ticket* tickets,
                                                       uint64_t capacity, uint64_t* out_count);
sh_status sh_prefetch_spilled(sh_spiller* spiller, const sh_ticket* tickets,
                                                   const uint64_t* addresses, uint64_t count, sh_stream stream);
sh_status sh_ticket_release(sh_spiller* spiller, sh_ticket ticket);
typedef struct sh_spiller_stats {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t steps;
    uint64_t saved;
    uint64_t spilled;
    uint64_t restored;
    uint64_t shared;
    uint64_t spill_bytes;
    uint64_t restore_bytes;
    uint64_t prefetched;
    uint64_t stall_count;
    uint64_t stall_ns;
    uint64_t pool_hits;
    uint64_t pool_misses;
    uint64_t failed_spills;
    uint64_t kept_bytes;
    uint64_t leaving_bytes;
    uint64_t away_bytes;
    uint64_t away_peak_bytes;
    uint64_t pool_bytes;
    uint64_t unpinned_bytes;
    uint64_t used_peak_bytes;
    uint64_t packed_bytes;
} sh_spiller_stats;
sh_status sh_spiller_get_stats(sh_spiller* spiller, sh_spiller_stats* out_stats);
sh_status sh_spiller_trim(sh_spiller* spiller, uint64_t* out_bytes);

/* telemetry.h */
typedef struct sh_runtime_stats {
    uint32_t struct_size;
    uint32_t lost;
    uint64_t steps;
    uint64_t acquires;
    uint64_t hits;
    uint64_t in_time;
    uint64_t misses;
    uint64_t loads;
    uint64_t load_pieces;
    uint64_t bytes_to_device;
    uint64_t bytes_to_host;
    uint64_t write_backs;
    uint64_t cancelled_loads;
    uint64_t failed_loads;
    uint64_t host_waits;
    uint64_t stall_ns;
    uint64_t plans;
    uint64_t remaps;
    uint64_t evictions;
    uint64_t given_up_bytes;
    uint64_t
        last_step_ns;
    uint64_t resident_bytes;
    uint64_t ring_bytes;
    uint64_t unordered_bytes;
    uint64_t held_bytes;
    uint64_t share_bytes;
    uint64_t protected_bytes;
    uint64_t reserved_bytes;
    uint64_t guest_bytes;
    uint64_t helped_bytes;
} sh_runtime_stats;
sh_status sh_runtime_get_stats(sh_runtime* runtime, sh_runtime_stats* out_stats);
sh_status sh_trace_start(const char* path, sh_scope** out_scope);
sh_status sh_telemetry_start(sh_runtime* runtime, sh_spiller* spiller, const char* path,
                                                  sh_scope** out_scope);

/* occupancy.h */
enum {
    SH_CONTENTS_DEFAULT = 0,
    SH_CONTENTS_STAGE = 1,
    SH_CONTENTS_DROP = 2,
    SH_CONTENTS_ZERO = 3,
    SH_CONTENTS_FILE = 4
};
enum {
    SH_ALLOC_CONST = 1
};
typedef struct sh_alloc_options {
    uint32_t struct_size;
    uint32_t contents;
    const char* tag;
    uint32_t flags;
    uint32_t format;
} sh_alloc_options;
sh_status sh_alloc(sh_device* device, uint64_t bytes, const sh_alloc_options* options,
                                        uint64_t* out_address);
sh_status sh_free(sh_device* device, uint64_t address);
enum {
    SH_OCCUPANCY_NO_WAIT = 1,
    SH_OCCUPANCY_REPEAT = 2,
    SH_OCCUPANCY_COPY_ALL = 4,
    SH_OCCUPANCY_UNPINNED = 8,
    SH_OCCUPANCY_PREPARE = 16
};
typedef struct sh_memory_range {
    uint64_t address;
    uint64_t bytes;
} sh_memory_range;
typedef struct sh_pause_options {
    uint32_t struct_size;
    uint32_t flags;
    const char* const* tags;
    uint64_t tag_count;
    uint32_t contents;
    uint32_t format;
    const sh_memory_range* unused;
    uint64_t unused_count;
    const char* folder;
    uint64_t host_bytes;
} sh_pause_options;
typedef struct sh_resume_options {
    uint32_t struct_size;
    uint32_t flags;
    const char* const* tags;
    uint64_t tag_count;
} sh_resume_options;
typedef struct sh_occupancy_change {
    uint32_t struct_size;
    uint32_t tag_count;
    uint64_t device_bytes;
    uint64_t copied_bytes;
    uint64_t ns;
    uint64_t unchanged_bytes;
    uint64_t packed_bytes;
} sh_occupancy_change;
sh_status sh_pause(sh_device* device, const sh_pause_options* options,
                                        sh_occupancy_change* out_change);
sh_status sh_resume(sh_device* device, const sh_resume_options* options,
                                         sh_occupancy_change* out_change);
enum {
    SH_OCCUPANCY_RUNNING = 0,
    SH_OCCUPANCY_RELEASING = 1,
    SH_OCCUPANCY_RELEASED = 2,
    SH_OCCUPANCY_RESUMING = 3,
    SH_OCCUPANCY_MIXED = 4,
    SH_OCCUPANCY_LOST = 5
};
typedef struct sh_occupancy_info {
    uint32_t struct_size;
    uint32_t state;
    char tag[64];
    uint64_t allocations;
    uint64_t bytes;
    uint64_t device_bytes;
    uint64_t staged_bytes;
    uint64_t host_bytes;
    uint64_t pinned_bytes;
    uint64_t cycles;
    uint64_t file_bytes;
} sh_occupancy_info;
sh_status sh_occupancy_get_info(sh_device* device, const char* tag, sh_occupancy_info* out_info);
sh_status sh_occupancy_list(sh_device* device, sh_occupancy_info* infos, uint64_t capacity,
                                                 uint64_t* out_count);
sh_status sh_occupancy_read(sh_device* device, uint64_t address, uint64_t bytes,
                                                 void* out_contents);
sh_status sh_occupancy_trim(sh_device* device, uint64_t* out_bytes);
typedef int32_t (*sh_before_pause_fn)(const char* const* tags, uint64_t tag_count, char* out_message,
                                      uint64_t message_bytes, void* user_data);
typedef void (*sh_after_resume_fn)(const char* const* tags, uint64_t tag_count, void* user_data);
sh_status sh_occupancy_add_callbacks(sh_device* device, sh_before_pause_fn before_pause,
                                                          sh_after_resume_fn after_resume, void* user_data,
                                                          sh_scope** out_scope);

/* control.h */
typedef struct sh_control_options {
    uint32_t struct_size;
    uint32_t reserved;
    const char* address;
    const char* token;
} sh_control_options;
typedef struct sh_control_info {
    uint32_t struct_size;
    uint32_t port;
    char address[128];
} sh_control_info;
sh_status sh_control_start(sh_device* device, const sh_control_options* options,
                                                sh_control_info* out_info, sh_scope** out_scope);
