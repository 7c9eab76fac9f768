/*
 * Streams a safetensors file through a quarter of its bytes, then protects a block, reserves for the model, and lets a guest in.
 *
 *     stream_file FILE [DEVICE]
 *
 * The same program as stream_file.cpp and stream_file.py.
 */
#include <cjson/cJSON.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stagehand/stagehand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    GUEST_BYTES = 1 << 20
};

struct tensor {
    uint64_t offset; /* in the file */
    uint64_t bytes;
    char *name;
};

static void fail(const char *what, const char *text) {
    fprintf(stderr, "stream_file: %s%s%s\n", what, *text ? ": " : "", text);
    exit(1);
}

static void check(sh_status status) {
    char text[1024] = "";
    if (status >= 0) return;
    sh_last_error(text, sizeof text);
    fail(sh_status_string(status), text);
}

static void *allocate(size_t count, size_t bytes) {
    void *memory = calloc(count + 1, bytes);
    if (memory == NULL) fail("out of memory", "");
    return memory;
}

static int by_offset(const void *left, const void *right) {
    const struct tensor *a = left, *b = right;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

/* Where each tensor lies in the file, how many bytes it has, and its name, in the file's order. */
static struct tensor *read_tensors(int file, const char *path, size_t *count) {
    unsigned char prefix[8];
    uint64_t length = 0;
    if (pread(file, prefix, 8, 0) != 8) fail(path, "it is no safetensors file");
    for (int i = 7; i >= 0; --i) length = length << 8 | prefix[i];
    if (length > 100000000) fail(path, "it is no safetensors file");
    char *text = allocate(length, 1);
    if (pread(file, text, length, 8) != (ssize_t)length) fail(path, "its header is cut short");

    cJSON *header = cJSON_Parse(text), *entry;
    if (header == NULL) fail(path, "its header is no JSON");
    struct tensor *tensors = allocate((size_t)cJSON_GetArraySize(header), sizeof *tensors);
    *count = 0;
    cJSON_ArrayForEach(entry, header) {
        if (strcmp(entry->string, "__metadata__") == 0) continue;
        const cJSON *span = cJSON_GetObjectItem(entry, "data_offsets");
        const double begin = cJSON_GetNumberValue(cJSON_GetArrayItem(span, 0));
        const double end = cJSON_GetNumberValue(cJSON_GetArrayItem(span, 1));
        if (!(begin >= 0 && end >= begin)) fail(path, "a tensor lies nowhere");
        if (end > begin)
            tensors[(*count)++] =
                (struct tensor){8 + length + (uint64_t)begin, (uint64_t)(end - begin), strdup(entry->string)};
    }
    if (*count == 0) fail(path, "it has no tensors");
    qsort(tensors, *count, sizeof *tensors, by_offset);
    cJSON_Delete(header);
    free(text);
    return tensors;
}

/* One pass over the model. In place of computing, it adds up all bytes. */
static uint64_t step(sh_runtime *runtime, const sh_block *blocks, size_t count) {
    uint64_t total = 0;
    check(sh_step_begin(runtime));
    for (size_t i = 0; i < count; ++i) {
        sh_view view = SH_VIEW_INIT;
        check(sh_acquire(runtime, blocks[i], SH_STREAM_HOST, 0, &view));
        unsigned char *bytes = allocate(view.bytes, 1);
        check(sh_read_block(runtime, blocks[i], SH_STREAM_HOST, 0, bytes, view.bytes));
        for (uint64_t at = 0; at < view.bytes; ++at) total += bytes[at];
        free(bytes);
        check(sh_release(runtime, blocks[i], SH_STREAM_HOST));
    }
    check(sh_step_end(runtime));
    return total;
}

/* Each tensor is a block, whose bytes come out of the file. */
static sh_block *register_model(sh_runtime *model, int file, const struct tensor *tensors, size_t count) {
    sh_segment *segments = allocate(count, sizeof *segments);
    sh_block_desc *descs = allocate(count, sizeof *descs);
    sh_block *blocks = allocate(count, sizeof *blocks);
    for (size_t i = 0; i < count; ++i) {
        sh_segment_init(&segments[i]);
        segments[i].kind = SH_SOURCE_FILE;
        segments[i].file = file;
        segments[i].file_offset = tensors[i].offset;
        segments[i].bytes = tensors[i].bytes;
        sh_block_desc_init(&descs[i]);
        descs[i].bytes = tensors[i].bytes;
        descs[i].segments = &segments[i];
        descs[i].segment_count = 1;
        descs[i].name = tensors[i].name;
    }
    check(sh_register_blocks(model, descs, count, blocks));
    free(segments);
    free(descs);
    return blocks;
}

/* Protect: the first block stays on the device, whole, whatever the others need. */
static void protect(sh_runtime *model, const sh_block *blocks, size_t count) {
    sh_block_state info = SH_BLOCK_STATE_INIT;
    check(sh_protect_blocks(model, blocks, 1));
    check(sh_plan(model, NULL, NULL));
    step(model, blocks, count);
    check(sh_block_info(model, blocks[0], &info));
    printf("protected: %" PRIu64 " of %" PRIu64 " bytes of %s stay on the device\n", info.resident_bytes, info.bytes,
           info.name);
    check(sh_unprotect_blocks(model, blocks, 1));
}

/* Reserve and guest: another model comes for a while, and takes nothing of what this one streams with. */
static void let_guest_in(sh_runtime *model, const sh_block *blocks, size_t count, sh_runtime *guest) {
    static unsigned char weights[GUEST_BYTES];
    sh_segment source = SH_SEGMENT_INIT;
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    sh_runtime_stats stats = SH_RUNTIME_STATS_INIT;
    sh_block guest_block;
    sh_scope *scope;
    memset(weights, 1, sizeof weights);
    source.kind = SH_SOURCE_POINTER;
    source.pointer = weights;
    source.bytes = desc.bytes = sizeof weights;
    desc.segments = &source;
    desc.segment_count = 1;
    desc.name = "weights";
    check(sh_register_blocks(guest, &desc, 1, &guest_block));
    check(sh_reserve(model, NULL, 0, SH_PRIORITY_PRIMARY));
    check(sh_guest_begin(model, guest, NULL, &scope));
    const uint64_t of_guest = step(guest, &guest_block, 1);
    printf("guest: the bytes add up to %" PRIu64 ", the model's to %" PRIu64 "\n", of_guest, step(model, blocks, count));
    check(sh_scope_end(scope));
    check(sh_stats(guest, &stats));
    printf("after the guest: it holds %" PRIu64 " bytes\n", stats.held_bytes);
    check(sh_release_reservation(model, NULL));
}

int main(int argc, char **argv) {
    sh_device_options device_options = SH_DEVICE_OPTIONS_INIT;
    sh_runtime_options model_options = SH_RUNTIME_OPTIONS_INIT, guest_options = SH_RUNTIME_OPTIONS_INIT;
    sh_device *device;
    sh_runtime *model, *guest;
    uint64_t model_bytes = 0, largest = 0;
    size_t count;
    if (argc < 2 || argc > 3) fail("usage", "stream_file FILE [DEVICE]");
    const int file = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (file < 0) fail(argv[1], "it cannot be opened");
    struct tensor *tensors = read_tensors(file, argv[1], &count);
    for (size_t i = 0; i < count; ++i) {
        model_bytes += tensors[i].bytes;
        if (tensors[i].bytes > largest) largest = tensors[i].bytes;
    }
    const uint64_t model_budget = model_bytes / 4 > 2 * largest ? model_bytes / 4 : 2 * largest;

    device_options.budget_bytes = model_budget + 2 * GUEST_BYTES;
    check(sh_device_open(argc > 2 ? argv[2] : "host", &device_options, &device));
    model_options.name = "model";
    model_options.max_bytes = model_budget;
    check(sh_runtime_create(device, &model_options, &model));
    guest_options.name = "guest";
    check(sh_runtime_create(device, &guest_options, &guest));

    sh_block *blocks = register_model(model, file, tensors, count);
    close(file); /* the library has a descriptor of its own */
    printf("%zu tensors of %" PRIu64 " bytes through %" PRIu64 " bytes\n", count, model_bytes, model_budget);
    for (int i = 0; i < 2; ++i) printf("step %d: the bytes add up to %" PRIu64 "\n", i, step(model, blocks, count));
    protect(model, blocks, count);
    let_guest_in(model, blocks, count, guest);

    sh_runtime_destroy(guest);
    sh_runtime_destroy(model);
    sh_device_close(device);
    for (size_t i = 0; i < count; ++i) free(tensors[i].name);
    free(tensors);
    free(blocks);
    return 0;
}
