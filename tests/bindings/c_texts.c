/*
 * The error texts for mistakes of an engine: a text names the block, the value or the mistake. Everything that the
 * mistake does not concern goes on.
 */
#include "check.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, SIZE = 4 * PAGE };

static unsigned char weights[4][SIZE];

static void text_has(const char* wanted, int line) {
    char text[1024] = "";
    sh_last_error(text, sizeof text);
    if (strstr(text, wanted)) return;
    fprintf(stderr, "line %d: \"%s\" is not in \"%s\"\n", line, wanted, text);
    ++failed_checks;
}
#define TEXT_HAS(wanted) text_has(wanted, __LINE__)

static sh_segment memory_segment(void* memory, uint64_t bytes) {
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_POINTER;
    segment.pointer = memory;
    segment.bytes = bytes;
    return segment;
}

static sh_block_desc describe(const sh_segment* segment, const char* name) {
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    desc.bytes = segment->bytes;
    desc.segments = segment;
    desc.segment_count = 1;
    desc.name = name;
    return desc;
}

static sh_block register_memory(sh_runtime* runtime, void* memory, uint64_t bytes, const char* name) {
    const sh_segment segment = memory_segment(memory, bytes);
    const sh_block_desc desc = describe(&segment, name);
    sh_block block = 0;
    SUCCEEDS(sh_register_blocks(runtime, &desc, 1, &block));
    return block;
}

/* The library reports a stream that was destroyed too early once. */
static void unknown_streams(sh_device* device, sh_runtime* runtime, sh_block block) {
    sh_view view = {.struct_size = sizeof(sh_view)};
    sh_runtime_stats stats = {.struct_size = sizeof(sh_runtime_stats)};
    sh_stream stream = 0;
    SUCCEEDS(sh_stream_create(device, &stream));
    SUCCEEDS(sh_step_begin(runtime, NULL));
    SUCCEEDS(sh_acquire(runtime, block, stream, 0, &view));
    SUCCEEDS(sh_release(runtime, block, stream));
    sh_stream_destroy(device, stream);
    const sh_status ended = sh_step_end(runtime);
    CHECK(ended == SH_OK || ended == SH_ERROR_INVALID_HANDLE); /* the stream's event may have been recorded before */
    SUCCEEDS(sh_step_begin(runtime, NULL));
    SUCCEEDS(sh_step_end(runtime));
    SUCCEEDS(sh_runtime_get_stats(runtime, &stats));
    CHECK(stats.lost == 0);
}

/* Two blocks share pages. One is unregistered while its source is being updated, and the other stays. */
static void unregistered_in_an_update(sh_runtime* runtime) {
    const sh_segment segments[2] = {memory_segment(weights[2], 100), memory_segment(weights[3], 100)};
    const sh_block_desc descs[2] = {describe(&segments[0], "goes"), describe(&segments[1], "stays")};
    sh_block blocks[2] = {0, 0};
    sh_view view = {.struct_size = sizeof(sh_view)};
    SUCCEEDS(sh_register_blocks(runtime, descs, 2, blocks));
    SUCCEEDS(sh_source_update_begin(runtime, &blocks[0], 1));
    GIVES(SH_ERROR_INVALID_STATE, sh_acquire(runtime, blocks[1], SH_STREAM_HOST, 0, &view));
    SUCCEEDS(sh_unregister_blocks(runtime, &blocks[0], 1));
    SUCCEEDS(sh_acquire(runtime, blocks[1], SH_STREAM_HOST, 0, &view));
    SUCCEEDS(sh_release(runtime, blocks[1], SH_STREAM_HOST));
    SUCCEEDS(sh_unregister_blocks(runtime, &blocks[1], 1));
}

/* The engine's changes are written back before the caller changes the source, and do not overwrite the caller's bytes.
 */
static void dirty_in_an_update(sh_runtime* runtime) {
    static unsigned char source[6 * SIZE], before;
    const sh_segment segment = memory_segment(source, sizeof source);
    sh_block_desc desc = describe(&segment, "weights in training");
    sh_block block = 0;
    sh_view view = {.struct_size = sizeof(sh_view)};
    unsigned char* bytes;
    desc.flags = SH_BLOCK_MUTABLE;
    SUCCEEDS(sh_register_blocks(runtime, &desc, 1, &block));
    SUCCEEDS(sh_acquire(runtime, block, SH_STREAM_HOST, 0, &view));
    bytes = view.address;
    bytes[0] = bytes[sizeof source - 1] = 1;
    SUCCEEDS(sh_mark_dirty(runtime, block));
    GIVES(SH_ERROR_INVALID_STATE, sh_source_update_begin(runtime, &block, 1));
    TEXT_HAS("weights in training");
    SUCCEEDS(sh_release(runtime, block, SH_STREAM_HOST));
    SUCCEEDS(sh_acquire(runtime, block, SH_STREAM_HOST, 0, &view));
    SUCCEEDS(sh_release(runtime, block, SH_STREAM_HOST));
    SUCCEEDS(sh_source_update_begin(runtime, &block, 1));
    CHECK(source[0] == 1 && source[sizeof source - 1] == 1);
    SUCCEEDS(sh_source_update_end(runtime, &block, 1));
    SUCCEEDS(sh_acquire(runtime, block, SH_STREAM_HOST, 0, &view));
    SUCCEEDS(sh_source_update_begin(runtime, &block, 1)); /* held, but as it was loaded */
    before = bytes[0];
    bytes[0] = 2;
    GIVES(SH_ERROR_INVALID_STATE, sh_mark_dirty(runtime, block));
    TEXT_HAS("being updated");
    source[0] = 3;
    SUCCEEDS(sh_release(runtime, block, SH_STREAM_HOST));
    SUCCEEDS(sh_source_update_end(runtime, &block, 1));
    SUCCEEDS(sh_acquire(runtime, block, SH_STREAM_HOST, 0, &view));
    CHECK(before == 1 && source[0] == 3 && bytes[0] == 3);
    SUCCEEDS(sh_release(runtime, block, SH_STREAM_HOST));
    SUCCEEDS(sh_unregister_blocks(runtime, &block, 1));
}

static void* other_thread(void* ignored) {
    (void)ignored;
    return (void*)(uintptr_t)sh_last_error(NULL, 0);
}

static void the_text_of_a_thread(void) {
    char text[16], cut[5];
    pthread_t thread;
    void* length = NULL;
    size_t full;
    GIVES(SH_ERROR_INVALID_HANDLE, sh_runtime_synchronize(NULL));
    full = sh_last_error(text, sizeof text);
    CHECK(full > 0 && sh_last_error(NULL, 0) == full);
    CHECK(sh_last_error(cut, sizeof cut) == full && strlen(cut) == 4 && memcmp(cut, text, 4) == 0);
    CHECK(sh_version() > 0 && sh_last_error(NULL, 0) == full); /* a success leaves the text as it is */
    CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0 && pthread_join(thread, &length) == 0);
    CHECK((uintptr_t)length == 0);
    CHECK(strcmp(sh_status_string(SH_ERROR_BUDGET), "SH_ERROR_BUDGET") == 0);
    CHECK(sh_status_string(-12345) != NULL && sh_status_string(12345) != NULL);
    CHECK(sh_version() == SH_VERSION_MAJOR * 1000000u + SH_VERSION_MINOR * 1000u + SH_VERSION_PATCH);
}

static size_t occurrences(const char* path, const char* what) {
    static char text[1 << 16];
    FILE* file = fopen(path, "r");
    size_t bytes = 0, found = 0;
    if (file) {
        bytes = fread(text, 1, sizeof text - 1, file);
        fclose(file);
    }
    text[bytes] = 0;
    for (const char* at = text; (at = strstr(at, what)) != NULL; ++at) ++found;
    return found;
}

/* A child that exits normally leaves the parent's trace alone. */
static void trace_over_a_fork(sh_runtime* runtime) {
    char path[] = "/tmp/stagehand-trace-XXXXXX";
    const int file = mkstemp(path);
    sh_scope* trace = NULL;
    pid_t child;
    int status = 0;
    CHECK(file >= 0);
    close(file);
    SUCCEEDS(sh_trace_start(path, &trace));
    SUCCEEDS(sh_step_begin(runtime, NULL));
    SUCCEEDS(sh_step_end(runtime));
    child = fork();
    if (child == 0) exit(sh_scope_end(trace) == SH_ERROR_FORKED ? 0 : 1);
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    SUCCEEDS(sh_step_begin(runtime, NULL));
    SUCCEEDS(sh_step_end(runtime));
    SUCCEEDS(sh_scope_end(trace));
    CHECK(occurrences(path, "traceEvents") == 1);
    CHECK(occurrences(path, "\"name\":\"step ") == 2);
    CHECK(occurrences(path, "]}") == 1);
    remove(path);
}

int main(void) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    sh_device *device = NULL, *again = NULL;
    sh_runtime* runtime = NULL;
    sh_block block;

    the_text_of_a_thread();
    options.page_bytes = 1; /* rounded up, and the same whenever it is asked for */
    options.budget_bytes = 16 * PAGE;
    SUCCEEDS(sh_device_open("host", &options, &device));
    SUCCEEDS(sh_device_open("host", &options, &again));
    sh_device_close(again);

    SUCCEEDS(sh_runtime_create(device, NULL, &runtime));
    block = register_memory(runtime, weights[1], SIZE, "layer");
    unknown_streams(device, runtime, block);
    unregistered_in_an_update(runtime);
    trace_over_a_fork(runtime);
    SUCCEEDS(sh_unregister_blocks(runtime, &block, 1));
    SUCCEEDS(sh_device_set_budget(device, 32 * PAGE));
    dirty_in_an_update(runtime);
    sh_runtime_destroy(runtime);
    sh_device_close(device);
    return failed_checks != 0;
}
