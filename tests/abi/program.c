/*
 * A program that uses each part of the interface. It also runs on a library of tomorrow, whose structs have grown.
 * Every struct lies in memory of exactly its size, followed by bytes that the library must not touch.
 */
#include <stagehand/stagehand.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64, PAGE = 4096, BLOCKS = 5, BLOCK_BYTES = 4 * PAGE, UNTOUCHED = 0x5a };

#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            char text[512] = "";                                                            \
            sh_last_error(text, sizeof text);                                               \
            fprintf(stderr, "line %d: %s does not hold: %s\n", __LINE__, #condition, text); \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

/* Memory for `count` structs of `bytes` bytes: all bytes are UNTOUCHED but for each struct_size. */
static void* guarded(size_t bytes, size_t count) {
    unsigned char* const memory = malloc(count * bytes + GUARD);
    if (!memory) abort();
    memset(memory, UNTOUCHED, count * bytes + GUARD);
    const uint32_t size = (uint32_t)bytes;
    for (size_t i = 0; i < count; i++) memcpy(memory + i * bytes, &size, sizeof size);
    return memory;
}

static int is_intact(const void* structs, size_t bytes, size_t count) {
    const unsigned char* const memory = structs;
    for (size_t i = 0; i < GUARD; i++)
        if (memory[count * bytes + i] != UNTOUCHED) return 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t size;
        memcpy(&size, memory + i * bytes, sizeof size);
        if (size != bytes) return 0;
    }
    return 1;
}

/* Whether the library has written a field. */
static int is_written(const void* field, size_t bytes) {
    const unsigned char* const memory = field;
    for (size_t i = 0; i < bytes; i++)
        if (memory[i] != UNTOUCHED) return 1;
    return 0;
}

#define NEW(type, count) ((type*)guarded(sizeof(type), (count)))
#define INTACT(pointer, count) CHECK(is_intact((pointer), sizeof *(pointer), (count)))
#define WRITTEN(field) CHECK(is_written(&(field), sizeof(field)))

/* A copy of an input in memory of exactly its size. */
#define INPUT(type, name, from)      \
    type* const name = NEW(type, 1); \
    memcpy(name, &(from), sizeof(type))

static unsigned char sources[BLOCKS][BLOCK_BYTES];
/* Blocks that are prefetched still load while the main thread reads the count. */
static _Atomic unsigned loaded_bytes;

static int32_t on_load(const sh_loaded_range* range, void* user_data) {
    if (range->struct_size < sizeof *range || user_data != sources || !range->address) return 1;
    loaded_bytes += (unsigned)range->bytes;
    return 0;
}

static sh_device* open_device(void) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.budget_bytes = 14 * PAGE;
    options.page_bytes = PAGE;
    sh_host_options host = SH_HOST_OPTIONS_INIT;
    host.staging_threads = 2;
    INPUT(sh_host_options, given_host, host);
    options.host = given_host;
    INPUT(sh_device_options, given, options);
    sh_device* device = NULL;
    CHECK(sh_device_open("host", given, &device) == SH_OK);
    INTACT(given, 1);
    INTACT(given_host, 1);
    free(given);
    free(given_host);

    sh_memory_info* const memory = NEW(sh_memory_info, 1);
    CHECK(sh_device_get_memory(device, memory) == SH_OK);
    INTACT(memory, 1);
    CHECK(memory->budget_bytes == 14 * PAGE && memory->page_bytes == PAGE);
    WRITTEN(memory->runtime_count);
    WRITTEN(memory->headroom_bytes);
    free(memory);

    sh_device_caps* const caps = NEW(sh_device_caps, 1);
    CHECK(sh_device_get_caps(device, caps) == SH_OK);
    INTACT(caps, 1);
    CHECK(caps->kind == SH_DEVICE_KIND_HOST && caps->ordinal == 0 && strcmp(caps->backend, "host") == 0);
    CHECK(caps->flags & SH_DEVICE_HOST_ADDRESSABLE);
    CHECK(caps->staging_threads == 2);
    WRITTEN(caps->reserved);
    free(caps);
    return device;
}

static void list_backends(void) {
    enum { MOST = 4 };
    sh_backend_info* const infos = NEW(sh_backend_info, MOST);
    uint64_t count = 0;
    CHECK(sh_backend_list(infos, MOST, &count) == SH_OK);
    INTACT(infos, MOST);
    CHECK(count >= 2);
    for (uint64_t i = 0; i < count && i < MOST; i++) {
        CHECK(is_written(infos[i].name, 1) && is_written(infos[i].path, 1) && is_written(infos[i].reason, 1));
        WRITTEN(infos[i].status);
        WRITTEN(infos[i].built_in);
    }
    free(infos);
}

static sh_runtime* create_runtime(sh_device* device, const char* name) {
    sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
    options.max_held = 2;
    options.max_bytes = 14 * PAGE;
    options.name = name;
    INPUT(sh_runtime_options, given, options);
    sh_runtime* runtime = NULL;
    CHECK(sh_runtime_create(device, given, &runtime) == SH_OK);
    INTACT(given, 1);
    free(given);
    return runtime;
}

/* Blocks of two segments each: the arrays' elements lie at the distance of their own size. */
static void register_blocks(sh_runtime* runtime, sh_block* ids) {
    sh_block_desc* const descs = NEW(sh_block_desc, BLOCKS);
    sh_segment* const segments = NEW(sh_segment, 2 * BLOCKS);
    static const char* const names[BLOCKS] = {"one", "two", "three", "four", "five"};
    for (int i = 0; i < BLOCKS; i++) {
        for (int k = 0; k < 2; k++) {
            sh_segment segment = SH_SEGMENT_INIT;
            segment.kind = SH_SOURCE_POINTER;
            segment.offset = (uint64_t)k * BLOCK_BYTES / 2;
            segment.bytes = BLOCK_BYTES / 2;
            segment.pointer = sources[i] + segment.offset;
            segments[2 * i + k] = segment;
        }
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        desc.bytes = BLOCK_BYTES;
        desc.segments = segments + 2 * i;
        desc.segment_count = 2;
        desc.on_load = on_load;
        desc.user_data = sources;
        desc.name = names[i];
        descs[i] = desc;
    }
    CHECK(sh_register_blocks(runtime, descs, BLOCKS, ids) == SH_OK);
    INTACT(descs, BLOCKS);
    INTACT(segments, 2 * BLOCKS);
    free(descs);
    free(segments);
}

static void plan(sh_runtime* runtime, const sh_block* ids) {
    sh_use* const uses = NEW(sh_use, BLOCKS);
    for (int i = 0; i < BLOCKS; i++) {
        sh_use use = SH_USE_INIT;
        use.block = ids[i];
        use.compute_ns = 1000;
        uses[i] = use;
    }
    CHECK(sh_set_schedule(runtime, uses, BLOCKS) == SH_OK);
    INTACT(uses, BLOCKS);
    free(uses);

    sh_plan_options options = SH_PLAN_OPTIONS_INIT;
    options.flags = SH_PLAN_DRY_RUN;
    options.budget_bytes = 16 * PAGE;
    options.link_bytes_per_second = 1000000000;
    INPUT(sh_plan_options, given, options);
    sh_plan_info* const info = NEW(sh_plan_info, 1);
    CHECK(sh_plan(runtime, given, info) == SH_OK);
    INTACT(given, 1);
    INTACT(info, 1);
    CHECK(info->model_bytes == BLOCKS * BLOCK_BYTES && info->link_bytes_per_second == 1000000000);
    CHECK(info->scheduled_blocks == BLOCKS);
    WRITTEN(info->max_held);
    WRITTEN(info->padding_bytes);
    CHECK(sh_plan(runtime, NULL, NULL) == SH_OK);
    free(info);
    free(given);
}

static void check_bytes(sh_runtime* runtime, sh_block id, int block) {
    static unsigned char bytes[BLOCK_BYTES];
    CHECK(sh_read_block(runtime, id, SH_STREAM_HOST, 0, bytes, sizeof bytes) == SH_OK);
    CHECK(memcmp(bytes, sources[block], sizeof bytes) == 0);
}

static void step(sh_runtime* runtime, const sh_block* ids) {
    CHECK(sh_step_begin(runtime, NULL) == SH_OK);
    for (int i = 0; i < BLOCKS; i++) {
        sh_view* const view = NEW(sh_view, 1);
        CHECK(sh_acquire(runtime, ids[i], SH_STREAM_HOST, 0, view) == SH_OK);
        INTACT(view, 1);
        CHECK(view->block == ids[i] && view->bytes == BLOCK_BYTES && view->address != NULL);
        WRITTEN(view->flags);
        WRITTEN(view->serial);
        /* Once more: the bytes are there. */
        memset((char*)view + sizeof view->struct_size, UNTOUCHED, sizeof *view - sizeof view->struct_size);
        CHECK(sh_acquire(runtime, ids[i], SH_STREAM_HOST, 0, view) == SH_OK);
        INTACT(view, 1);
        CHECK(view->block == ids[i] && (view->flags & SH_VIEW_HIT));
        WRITTEN(view->serial);
        check_bytes(runtime, ids[i], i);
        CHECK(sh_release(runtime, ids[i], SH_STREAM_HOST) == SH_OK);
        CHECK(sh_release(runtime, ids[i], SH_STREAM_HOST) == SH_OK);
        free(view);
    }
    CHECK(sh_step_end(runtime) == SH_OK);

    sh_view* const views = NEW(sh_view, 2);
    CHECK(sh_acquire_many(runtime, ids, 2, SH_STREAM_HOST, 0, views) == SH_OK);
    INTACT(views, 2);
    for (int i = 0; i < 2; i++) {
        CHECK(views[i].block == ids[i] && views[i].bytes == BLOCK_BYTES);
        WRITTEN(views[i].serial);
        check_bytes(runtime, ids[i], i);
    }
    for (uint64_t i = 0; i < 2; i++) CHECK(sh_release(runtime, ids[i], SH_STREAM_HOST) == SH_OK);
    free(views);
    CHECK(loaded_bytes >= BLOCKS * BLOCK_BYTES);
}

static void use_a_set(sh_runtime* runtime) {
    sh_block_desc* const descs = NEW(sh_block_desc, BLOCKS);
    sh_segment* const segments = NEW(sh_segment, BLOCKS);
    for (int i = 0; i < BLOCKS; i++) {
        sh_segment segment = SH_SEGMENT_INIT;
        segment.kind = SH_SOURCE_POINTER;
        segment.bytes = PAGE;
        segment.pointer = sources[i];
        segments[i] = segment;
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        desc.bytes = PAGE;
        desc.segments = segments + i;
        desc.segment_count = 1;
        descs[i] = desc;
    }
    sh_set_options options = SH_SET_OPTIONS_INIT;
    options.call_members = 2;
    options.group_members = BLOCKS;
    options.slots = 3;
    options.stride = PAGE + 256;
    options.name = "experts";
    INPUT(sh_set_options, given, options);
    sh_block ids[BLOCKS];
    sh_set set = 0;
    CHECK(sh_set_create(runtime, given, descs, BLOCKS, ids, &set) == SH_OK);
    INTACT(given, 1);
    INTACT(descs, BLOCKS);
    INTACT(segments, BLOCKS);
    free(given);
    free(descs);
    free(segments);

    const uint32_t members[2] = {3, 1};
    const float chances[2] = {0.5f, 1};
    uint32_t slots[2];
    sh_view* const pool = NEW(sh_view, 1);
    CHECK(sh_acquire_members(runtime, set, members, 2, SH_STREAM_HOST, 0, pool, slots) == SH_OK);
    INTACT(pool, 1);
    CHECK(pool->bytes >= 2 * options.stride);
    for (int i = 0; i < 2; i++)
        CHECK(memcmp((char*)pool->address + slots[i] * options.stride, sources[members[i]], PAGE) == 0);
    CHECK(sh_release_members(runtime, set, members, 2, SH_STREAM_HOST) == SH_OK);
    CHECK(sh_prefetch_members(runtime, set, members, chances, 2) == SH_OK);
    free(pool);

    sh_set_info* const info = NEW(sh_set_info, 1);
    CHECK(sh_set_get_info(runtime, set, info) == SH_OK);
    INTACT(info, 1);
    CHECK(info->members == BLOCKS && info->stride == options.stride && info->uses == 2);
    WRITTEN(info->evictions);
    free(info);
    CHECK(sh_set_destroy(runtime, set) == SH_OK);
}

static void look(sh_runtime* runtime, sh_block id) {
    sh_block_state* const state = NEW(sh_block_state, 1);
    CHECK(sh_block_get_state(runtime, id, state) == SH_OK);
    INTACT(state, 1);
    CHECK(state->bytes == BLOCK_BYTES && strcmp(state->name, "one") == 0);
    WRITTEN(state->protections);
    free(state);

    sh_runtime_stats* const stats = NEW(sh_runtime_stats, 1);
    CHECK(sh_runtime_get_stats(runtime, stats) == SH_OK);
    INTACT(stats, 1);
    CHECK(stats->steps == 1 && stats->lost == 0);
    WRITTEN(stats->guest_bytes);
    free(stats);
}

/* An initialiser writes no more than the program's own struct. */
static void initialize(void) {
    sh_use* const use = NEW(sh_use, 1);
    sh_device_options* const options = NEW(sh_device_options, 1);
    sh_use_init(use);
    sh_device_options_init(options);
    INTACT(use, 1);
    INTACT(options, 1);
    CHECK(use->compute_ns == 0 && options->helpers == NULL);
    free(use);
    free(options);
}

static void be_a_guest(sh_device* device) {
    sh_runtime* const guest = create_runtime(device, "guest");
    sh_guest_options options = SH_GUEST_OPTIONS_INIT;
    options.bytes = PAGE;
    options.flags = SH_GUEST_SHRINK;
    INPUT(sh_guest_options, given, options);
    sh_scope* scope = NULL;
    CHECK(sh_guest_begin(guest, given, &scope) == SH_OK);
    INTACT(given, 1);
    CHECK(sh_scope_end(scope) == SH_OK);
    free(given);
    sh_runtime_destroy(guest);
}

/* A struct that tells less than its first size is refused, and is not written to. */
static void tell_less(sh_device* device) {
    sh_memory_info* const memory = NEW(sh_memory_info, 1);
    memory->struct_size -= 8;
    CHECK(sh_device_get_memory(device, memory) == SH_ERROR_INVALID_STRUCT);
    CHECK(!is_written(&memory->budget_bytes, sizeof memory->budget_bytes));
    free(memory);
}

int main(void) {
    for (int i = 0; i < BLOCKS; i++)
        for (int k = 0; k < BLOCK_BYTES; k++) sources[i][k] = (unsigned char)(k * 7 + k / 251 + i * 31);
    sh_device* const device = open_device();
    list_backends();
    initialize();
    sh_runtime* const runtime = create_runtime(device, "model");
    sh_block ids[BLOCKS];
    register_blocks(runtime, ids);
    plan(runtime, ids);
    step(runtime, ids);
    look(runtime, ids[0]);
    use_a_set(runtime);
    tell_less(device);
    CHECK(sh_trim(runtime, 0, NULL) == SH_OK);
    be_a_guest(device);
    sh_runtime_destroy(runtime);
    sh_device_close(device);
    puts("a program of version 0.1 works with this library");
    return 0;
}
