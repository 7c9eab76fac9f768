/*
 * Handles that are NULL, destroyed, stale or foreign, impossible structs, and misplaced calls. The library returns the
 * status that the headers name, never crashes, and touches no output.
 */
#include "check.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned char weights[4][65536];

static sh_block register_one(sh_runtime* runtime, void* memory, size_t bytes) {
    sh_segment segment = SH_SEGMENT_INIT;
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    sh_block block = 0;
    segment.kind = SH_SOURCE_POINTER;
    segment.pointer = memory;
    segment.bytes = bytes;
    desc.bytes = bytes;
    desc.segments = &segment;
    desc.segment_count = 1;
    SUCCEEDS(sh_register_blocks(runtime, &desc, 1, &block));
    return block;
}

/* Calls every function that takes a device with a handle that is not a device. */
static void wrong_device(sh_device* device) {
    sh_memory_info memory = {.struct_size = sizeof(sh_memory_info)};
    sh_device_caps caps = {.struct_size = sizeof(sh_device_caps)};
    sh_runtime* runtime = NULL;
    sh_stream stream = 77;
    uint64_t clock = 77;
    void* pinned = NULL;
    GIVES(SH_ERROR_INVALID_HANDLE, sh_device_get_memory(device, &memory));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_device_set_budget(device, 1 << 20));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_device_get_caps(device, &caps));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_device_get_clock(device, &clock));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_runtime_create(device, NULL, &runtime));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_stream_create(device, &stream));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_stream_synchronize(device, SH_STREAM_HOST));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_stream_launch(device, SH_STREAM_HOST, NULL, NULL, 0));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_host_alloc(device, 4096, &pinned, NULL));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_host_free(device, weights));
    CHECK(runtime == NULL && stream == 77 && clock == 77 && pinned == NULL && memory.budget_bytes == 0);
    sh_stream_destroy(device, SH_STREAM_HOST);
    sh_device_close(device);
}

/* Calls every function that takes a runtime with a handle that is not a runtime. */
static void wrong_runtime(sh_runtime* runtime) {
    sh_block block = 1;
    sh_block out = 77;
    sh_view view = {.struct_size = sizeof(sh_view)};
    sh_block_state state = {.struct_size = sizeof(sh_block_state)};
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    sh_plan_info plan = {.struct_size = sizeof(sh_plan_info)};
    sh_runtime_stats stats = {.struct_size = sizeof(sh_runtime_stats)};
    sh_use use = SH_USE_INIT;
    desc.bytes = 1;
    GIVES(SH_ERROR_INVALID_HANDLE, sh_runtime_synchronize(runtime));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_register_blocks(runtime, &desc, 1, &out));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_unregister_blocks(runtime, &block, 1));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_block_get_state(runtime, block, &state));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_invalidate_blocks(runtime, &block, 1));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_source_update_begin(runtime, &block, 1));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_source_update_end(runtime, &block, 1));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_mark_dirty(runtime, block));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_write_back(runtime, NULL, 0));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_set_schedule(runtime, &use, 1));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_plan(runtime, NULL, &plan));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_step_begin(runtime, NULL));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_step_end(runtime));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_acquire(runtime, block, SH_STREAM_HOST, 0, &view));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_acquire_many(runtime, &block, 1, SH_STREAM_HOST, 0, &view));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_release(runtime, block, SH_STREAM_HOST));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_prefetch(runtime, &block, 1));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_read_block(runtime, block, SH_STREAM_HOST, 0, &out, 1));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_stream_forget(runtime, SH_STREAM_HOST));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_runtime_get_stats(runtime, &stats));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_telemetry_start(runtime, NULL, "steps", NULL));
    CHECK(out == 77 && view.address == NULL && stats.steps == 0 && plan.model_bytes == 0);
    sh_runtime_destroy(runtime);
}

/* `block` is not a block of this runtime: 0, an unregistered block, or a block of another runtime. */
static void wrong_block(sh_runtime* runtime, sh_block block) {
    sh_view view = {.struct_size = sizeof(sh_view)};
    sh_block_state state = {.struct_size = sizeof(sh_block_state)};
    sh_use use = SH_USE_INIT;
    unsigned char byte = 77;
    use.block = block;
    GIVES(SH_ERROR_INVALID_HANDLE, sh_acquire(runtime, block, SH_STREAM_HOST, 0, &view));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_acquire_many(runtime, &block, 1, SH_STREAM_HOST, 0, &view));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_release(runtime, block, SH_STREAM_HOST));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_block_get_state(runtime, block, &state));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_invalidate_blocks(runtime, &block, 1));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_source_update_begin(runtime, &block, 1));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_source_update_end(runtime, &block, 1));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_mark_dirty(runtime, block));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_write_back(runtime, &block, 1));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_prefetch(runtime, &block, 1));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_read_block(runtime, block, SH_STREAM_HOST, 0, &byte, 1));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_set_schedule(runtime, &use, 1));
    GIVES(SH_ERROR_INVALID_HANDLE, sh_unregister_blocks(runtime, &block, 1));
    CHECK(view.address == NULL && byte == 77);
}

static void impossible_structs(sh_device* device, sh_runtime* runtime, sh_block block) {
    struct {
        sh_device_options known;
        uint64_t unknown;
    } future = {SH_DEVICE_OPTIONS_INIT, 0};
    sh_device* again = NULL;
    sh_memory_info memory = {.struct_size = sizeof(sh_memory_info)};
    sh_view view = {.struct_size = sizeof(sh_view)};
    sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
    sh_runtime* other = NULL;

    memory.struct_size = 0;
    GIVES(SH_ERROR_INVALID_STRUCT, sh_device_get_memory(device, &memory));
    view.struct_size = 3;
    GIVES(SH_ERROR_INVALID_STRUCT, sh_acquire(runtime, block, SH_STREAM_HOST, 0, &view));
    options.struct_size = 0xffffffff;
    GIVES(SH_ERROR_INVALID_STRUCT, sh_runtime_create(device, &options, &other));

    /* A struct of a later version is fine while the fields that this library does not know are zero. */
    future.known.struct_size = sizeof future;
    SUCCEEDS(sh_device_open("host", &future.known, &again));
    CHECK(again == device);
    sh_device_close(again);
    future.unknown = 1;
    again = NULL;
    GIVES(SH_ERROR_INVALID_STRUCT, sh_device_open("host", &future.known, &again));
    CHECK(again == NULL && other == NULL);
}

static void impossible_arguments(sh_device* device, sh_runtime* runtime) {
    sh_segment segments[2] = {SH_SEGMENT_INIT, SH_SEGMENT_INIT};
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    sh_block block = 77;
    sh_device* other = NULL;
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    void* memory = NULL;
    char text[256] = "";

    segments[0].kind = segments[1].kind = SH_SOURCE_POINTER;
    segments[0].pointer = segments[1].pointer = weights[0];
    segments[0].bytes = segments[1].bytes = 100;
    segments[1].offset = 50;
    desc.bytes = 200;
    desc.segments = segments;
    desc.segment_count = 2;
    desc.name = "the culprit";
    GIVES(SH_ERROR_INVALID_ARGUMENT, sh_register_blocks(runtime, &desc, 1, &block)); /* the segments overlap */
    sh_last_error(text, sizeof text);
    CHECK(strstr(text, "the culprit") != NULL);
    segments[1].offset = 150;
    GIVES(SH_ERROR_INVALID_ARGUMENT,
          sh_register_blocks(runtime, &desc, 1, &block)); /* a segment ends beyond the block */
    segments[1].offset = UINT64_MAX - 10;
    GIVES(SH_ERROR_INVALID_ARGUMENT,
          sh_register_blocks(runtime, &desc, 1, &block)); /* the end of a segment overflows */
    segments[1].offset = 100;
    segments[1].kind = 99;
    GIVES(SH_ERROR_INVALID_ARGUMENT, sh_register_blocks(runtime, &desc, 1, &block));
    segments[1].kind = SH_SOURCE_POINTER;
    segments[1].pointer = NULL;
    GIVES(SH_ERROR_INVALID_ARGUMENT, sh_register_blocks(runtime, &desc, 1, &block));
    GIVES(SH_ERROR_INVALID_ARGUMENT, sh_register_blocks(runtime, NULL, 1, &block));
    CHECK(block == 77);

    GIVES(SH_ERROR_INVALID_ARGUMENT, sh_device_open(NULL, NULL, &other));
    GIVES(SH_ERROR_INVALID_ARGUMENT, sh_device_open("host", NULL, NULL));
    GIVES(SH_ERROR_NOT_FOUND, sh_device_open("no-such-backend", NULL, &other));
    options.budget_bytes = 123 << 20;
    GIVES(SH_ERROR_INVALID_ARGUMENT, sh_device_open("host", &options, &other)); /* open with another budget */
    GIVES(SH_ERROR_INVALID_ARGUMENT, sh_host_alloc(device, 0, &memory, NULL));
    GIVES(SH_ERROR_INVALID_ARGUMENT, sh_host_free(device, weights));
    GIVES(SH_ERROR_INVALID_ARGUMENT, sh_set_log(99, NULL, NULL));
    CHECK(other == NULL && memory == NULL);
}

static void calls_out_of_place(sh_runtime* runtime, sh_block block) {
    sh_view view = {.struct_size = sizeof(sh_view)};
    unsigned char byte = 0;
    GIVES(SH_ERROR_INVALID_STATE, sh_step_end(runtime));
    GIVES(SH_ERROR_INVALID_STATE, sh_release(runtime, block, SH_STREAM_HOST));
    GIVES(SH_ERROR_INVALID_STATE, sh_read_block(runtime, block, SH_STREAM_HOST, 0, &byte, 1));
    GIVES(SH_ERROR_INVALID_STATE, sh_mark_dirty(runtime, block));
    GIVES(SH_ERROR_INVALID_STATE, sh_source_update_end(runtime, &block, 1));
    SUCCEEDS(sh_step_begin(runtime, NULL));
    GIVES(SH_ERROR_INVALID_STATE, sh_step_begin(runtime, NULL));
    SUCCEEDS(sh_acquire(runtime, block, SH_STREAM_HOST, 0, &view));
    GIVES(SH_ERROR_INVALID_STATE, sh_unregister_blocks(runtime, &block, 1));
    GIVES(SH_ERROR_INVALID_ARGUMENT, sh_read_block(runtime, block, SH_STREAM_HOST, sizeof weights[0], &byte, 1));
    SUCCEEDS(sh_release(runtime, block, SH_STREAM_HOST));
    GIVES(SH_ERROR_INVALID_STATE, sh_release(runtime, block, SH_STREAM_HOST));
    SUCCEEDS(sh_step_end(runtime));
    SUCCEEDS(sh_source_update_begin(runtime, &block, 1));
    GIVES(SH_ERROR_INVALID_STATE, sh_acquire(runtime, block, SH_STREAM_HOST, 0, &view));
    SUCCEEDS(sh_source_update_end(runtime, &block, 1));
    GIVES(SH_ERROR_INVALID_ARGUMENT, sh_trace_start("trace", NULL));
}

static void too_small_a_budget(sh_device* device) {
    static unsigned char large[1 << 20];
    sh_memory_info memory = {.struct_size = sizeof(sh_memory_info)};
    sh_runtime* runtime = NULL;
    sh_block block;
    char text[512] = "";
    SUCCEEDS(sh_runtime_create(device, NULL, &runtime));
    block = register_one(runtime, large, sizeof large);
    {
        sh_use use = SH_USE_INIT;
        use.block = block;
        SUCCEEDS(sh_set_schedule(runtime, &use, 1));
    }
    GIVES(SH_ERROR_BUDGET, sh_plan(runtime, NULL, NULL));
    CHECK(sh_last_error(text, sizeof text) > 0);
    sh_runtime_destroy(runtime);
    SUCCEEDS(sh_device_get_memory(device, &memory));
    CHECK(memory.used_bytes <= memory.budget_bytes);
}

static void* other_thread(void* ignored) {
    (void)ignored;
    return (void*)(uintptr_t)sh_last_error(NULL, 0);
}

static void error_text(void) {
    char text[16], cut[5];
    pthread_t thread;
    void* length = NULL;
    size_t full;
    GIVES(SH_ERROR_INVALID_HANDLE, sh_runtime_synchronize(NULL));
    full = sh_last_error(text, sizeof text);
    CHECK(full > 0);
    CHECK(sh_last_error(NULL, 0) == full);
    CHECK(sh_last_error(cut, sizeof cut) == full && strlen(cut) == 4 && memcmp(cut, text, 4) == 0);
    CHECK(sh_version() > 0 && sh_last_error(NULL, 0) == full); /* a success leaves the text as it is */
    CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0 && pthread_join(thread, &length) == 0);
    CHECK((uintptr_t)length == 0); /* the text belongs to the thread */
    CHECK(strcmp(sh_status_string(SH_ERROR_BUDGET), "SH_ERROR_BUDGET") == 0);
    CHECK(sh_status_string(-12345) != NULL && sh_status_string(12345) != NULL);
    CHECK(sh_version() == SH_VERSION_MAJOR * 1000000u + SH_VERSION_MINOR * 1000u + SH_VERSION_PATCH);
}

static void after_fork(sh_device* device, sh_runtime* runtime, sh_block block) {
    const pid_t child = fork();
    int status = 0;
    if (child == 0) {
        sh_view view = {.struct_size = sizeof(sh_view)};
        sh_memory_info memory = {.struct_size = sizeof(sh_memory_info)};
        const int all = sh_acquire(runtime, block, SH_STREAM_HOST, 0, &view) == SH_ERROR_FORKED &&
                        sh_step_begin(runtime, NULL) == SH_ERROR_FORKED &&
                        sh_device_get_memory(device, &memory) == SH_ERROR_FORKED;
        _exit(all ? 0 : 1);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    sh_device* device = NULL;
    sh_runtime *runtime = NULL, *other = NULL;
    sh_block block, foreign, stale;

    error_text();
    wrong_device(NULL);
    wrong_runtime(NULL);
    wrong_device((sh_device*)weights); /* not a device at all */
    wrong_runtime((sh_runtime*)weights);

    options.page_bytes = 4096;
    options.budget_bytes = 512 << 10;
    SUCCEEDS(sh_device_open("host", &options, &device));
    SUCCEEDS(sh_runtime_create(device, NULL, &runtime));
    SUCCEEDS(sh_runtime_create(device, NULL, &other));
    block = register_one(runtime, weights[0], sizeof weights[0]);
    foreign = register_one(other, weights[1], sizeof weights[1]);
    stale = register_one(runtime, weights[2], sizeof weights[2]);
    SUCCEEDS(sh_unregister_blocks(runtime, &stale, 1));
    CHECK(block != 0 && foreign != 0 && stale != 0 && block != foreign && block != stale && foreign != stale);

    wrong_block(runtime, 0);
    wrong_block(runtime, foreign);
    wrong_block(runtime, stale);
    wrong_runtime((sh_runtime*)device); /* a handle of another kind */
    wrong_device((sh_device*)runtime);
    impossible_structs(device, runtime, block);
    impossible_arguments(device, runtime);
    calls_out_of_place(runtime, block);
    after_fork(device, runtime, block);

    sh_runtime_destroy(other);
    wrong_runtime(other);
    too_small_a_budget(device);
    sh_runtime_destroy(runtime);
    wrong_runtime(runtime);
    sh_device_close(device);
    wrong_device(device);
    return failed_checks != 0;
}
