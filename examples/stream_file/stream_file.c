/*
 * Streams a safetensors file through a quarter of its bytes, and compares every byte.
 *
 *     stream_file FILE [DEVICE]
 *
 * In other languages: stream_file.cpp, stream_file.py and stream_file.rs.
 */
#include <cjson/cJSON.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stagehand/stagehand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 3 };

/* A tensor, or a piece of one. */
struct tensor {
    uint64_t offset; /* in the file */
    uint64_t bytes;
    char* name;
};

static void fail(const char* what, const char* text) {
    fprintf(stderr, "stream_file: %s%s%s\n", what, *text ? ": " : "", text);
    exit(1);
}

static void check(sh_status status) {
    char text[1024] = "";
    if (status >= 0) return;
    sh_last_error(text, sizeof text);
    fail(sh_status_string(status), text);
}

static void* allocate(size_t count, size_t bytes) {
    void* memory = calloc(count + 1, bytes);
    if (memory == NULL) fail("out of memory", "");
    return memory;
}

static int by_offset(const void* left, const void* right) {
    const struct tensor *a = left, *b = right;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

/* Reads the place of each tensor in the file, its number of bytes and its name, in the order of the file. */
static struct tensor* read_tensors(int file, const char* path, size_t* count) {
    unsigned char prefix[8];
    uint64_t length = 0;
    if (pread(file, prefix, 8, 0) != 8) fail(path, "it is not a safetensors file");
    for (int i = 7; i >= 0; --i) length = length << 8 | prefix[i];
    if (length > 100000000) fail(path, "it is not a safetensors file");
    char* text = allocate(length, 1);
    if (pread(file, text, length, 8) != (ssize_t)length) fail(path, "its header is incomplete");

    cJSON *header = cJSON_Parse(text), *entry;
    if (header == NULL) fail(path, "its header is not JSON");
    struct tensor* tensors = allocate((size_t)cJSON_GetArraySize(header), sizeof *tensors);
    *count = 0;
    cJSON_ArrayForEach(entry, header) {
        if (strcmp(entry->string, "__metadata__") == 0) continue;
        const cJSON* span = cJSON_GetObjectItem(entry, "data_offsets");
        const double begin = cJSON_GetNumberValue(cJSON_GetArrayItem(span, 0));
        const double end = cJSON_GetNumberValue(cJSON_GetArrayItem(span, 1));
        if (!(begin >= 0 && end >= begin)) fail(path, "a tensor has no valid data_offsets");
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

/* Splits tensors that are too large for the budget. A block is used as a whole, so the largest block has to fit. */
static struct tensor* split(const struct tensor* tensors, size_t* count, uint64_t most) {
    size_t pieces = 0;
    for (size_t i = 0; i < *count; ++i) pieces += (tensors[i].bytes + most - 1) / most;
    struct tensor* split = allocate(pieces, sizeof *split);
    pieces = 0;
    for (size_t i = 0; i < *count; ++i)
        for (uint64_t at = 0; at < tensors[i].bytes; at += most) {
            const uint64_t rest = tensors[i].bytes - at;
            split[pieces++] = (struct tensor){tensors[i].offset + at, rest < most ? rest : most, tensors[i].name};
        }
    *count = pieces;
    return split;
}

/* Registers each piece as a block whose bytes come from the file. */
static sh_block* register_model(sh_runtime* model, int file, const struct tensor* pieces, size_t count) {
    sh_segment* segments = allocate(count, sizeof *segments);
    sh_block_desc* descs = allocate(count, sizeof *descs);
    sh_block* blocks = allocate(count, sizeof *blocks);
    for (size_t i = 0; i < count; ++i) {
        sh_segment_init(&segments[i]);
        segments[i].kind = SH_SOURCE_FILE;
        segments[i].file = file;
        segments[i].file_offset = pieces[i].offset;
        segments[i].bytes = pieces[i].bytes;
        sh_block_desc_init(&descs[i]);
        descs[i].bytes = pieces[i].bytes;
        descs[i].segments = &segments[i];
        descs[i].segment_count = 1;
        descs[i].name = pieces[i].name;
    }
    check(sh_register_blocks(model, descs, count, blocks));
    free(segments);
    free(descs);
    return blocks;
}

/* One pass over the model. It compares every byte with the file instead of computing. */
static uint64_t step(sh_runtime* model, const sh_block* blocks, int file, const struct tensor* pieces, size_t count) {
    uint64_t total = 0;
    check(sh_step_begin(model, NULL));
    for (size_t i = 0; i < count; ++i) {
        const uint64_t bytes = pieces[i].bytes;
        unsigned char *there = allocate(bytes, 1), *wanted = allocate(bytes, 1);
        sh_view view = {.struct_size = sizeof(sh_view)};
        check(sh_acquire(model, blocks[i], SH_STREAM_HOST, 0, &view));
        check(sh_read_block(model, blocks[i], SH_STREAM_HOST, 0, there, bytes));
        check(sh_release(model, blocks[i], SH_STREAM_HOST));
        if (pread(file, wanted, bytes, (off_t)pieces[i].offset) != (ssize_t)bytes || memcmp(there, wanted, bytes) != 0)
            fail(pieces[i].name, "its bytes differ from the file");
        total += bytes;
        free(there);
        free(wanted);
    }
    check(sh_step_end(model));
    return total;
}

int main(int argc, char** argv) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    sh_memory_info memory = {.struct_size = sizeof(sh_memory_info)};
    sh_runtime_stats stats = {.struct_size = sizeof(sh_runtime_stats)};
    sh_device* device;
    sh_runtime* model;
    uint64_t model_bytes = 0;
    size_t tensor_count, count;
    if (argc < 2 || argc > 3) fail("usage", "stream_file FILE [DEVICE]");
    const int file = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (file < 0) fail(argv[1], "it cannot be opened");
    struct tensor* tensors = read_tensors(file, argv[1], &tensor_count);
    for (size_t i = 0; i < tensor_count; ++i) model_bytes += tensors[i].bytes;
    const uint64_t budget = model_bytes / 4;
    count = tensor_count;
    struct tensor* pieces = split(tensors, &count, budget / 4 + 1);

    options.budget_bytes = budget;
    check(sh_device_open(argc > 2 ? argv[2] : "host", &options, &device));
    check(sh_runtime_create(device, NULL, &model));
    sh_block* blocks = register_model(model, file, pieces, count);
    printf("%zu tensors of %" PRIu64 " bytes, in %zu blocks, through %" PRIu64 " bytes\n", tensor_count, model_bytes,
           count, budget);
    for (int i = 0; i < STEPS; ++i)
        printf("step %d: %" PRIu64 " bytes equal the file\n", i, step(model, blocks, file, pieces, count));
    check(sh_device_get_memory(device, &memory));
    check(sh_runtime_get_stats(model, &stats));
    printf("the device held at most %" PRIu64 " bytes, and %" PRIu64 " bytes were copied to it\n", memory.peak_bytes,
           stats.bytes_to_device);
    if (memory.peak_bytes > budget) fail("the device", "it held more than the budget");
    if (stats.bytes_to_device < model_bytes + (STEPS - 1) * (model_bytes - budget))
        fail("the model", "it did not stream");

    sh_runtime_destroy(model);
    sh_device_close(device);
    close(file);
    for (size_t i = 0; i < tensor_count; ++i) free(tensors[i].name);
    free(tensors);
    free(pieces);
    free(blocks);
    return 0;
}
