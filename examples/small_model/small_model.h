/*
 * A small model that streams, for the examples protect and reserve_and_guest. A program sets `program` to its name.
 */
#ifndef SMALL_MODEL_H
#define SMALL_MODEL_H

#include <stagehand/stagehand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYER_BYTES = 4 << 20, MOST_LAYERS = 12 };

static const char* program = "example";

static inline void fail(const char* what, const char* text) {
    fprintf(stderr, "%s: %s: %s\n", program, what, text);
    exit(1);
}

static inline void check(sh_status status) {
    char text[1024] = "";
    if (status >= 0) return;
    sh_last_error(text, sizeof text);
    fail(sh_status_string(status), text);
}

static inline void expect(int holds, const char* what) {
    if (!holds) fail("this does not hold", what);
    puts(what);
}

static inline void* allocate(size_t bytes) {
    void* memory = malloc(bytes);
    if (memory == NULL) fail("out of memory", "");
    return memory;
}

/* A model. All bytes of layer i have the value `first` + i. */
struct model {
    sh_runtime* runtime;
    int layers;
    sh_block blocks[MOST_LAYERS];
    unsigned char* weights[MOST_LAYERS];
};

static inline struct model make_model(sh_device* device, const char* name, int layers, int first, uint64_t max_bytes) {
    struct model made = {NULL, layers, {0}, {NULL}};
    sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
    options.name = name;
    options.max_bytes = max_bytes;
    check(sh_runtime_create(device, &options, &made.runtime));
    for (int i = 0; i < layers; ++i) {
        char layer_name[32];
        sh_segment source = SH_SEGMENT_INIT;
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        snprintf(layer_name, sizeof layer_name, "%s %d", name, i);
        made.weights[i] = memset(allocate(LAYER_BYTES), first + i, LAYER_BYTES);
        source.kind = SH_SOURCE_POINTER;
        source.pointer = made.weights[i];
        source.bytes = desc.bytes = LAYER_BYTES;
        desc.segments = &source;
        desc.segment_count = 1;
        desc.name = layer_name;
        check(sh_register_blocks(made.runtime, &desc, 1, &made.blocks[i]));
    }
    return made;
}

static inline void destroy_model(struct model* model) {
    sh_runtime_destroy(model->runtime);
    for (int i = 0; i < model->layers; ++i) free(model->weights[i]);
}

/* One pass over a model. It compares every byte instead of computing. */
static inline void step_of(const struct model* model) {
    unsigned char* there = allocate(LAYER_BYTES);
    check(sh_step_begin(model->runtime, NULL));
    for (int i = 0; i < model->layers; ++i) {
        sh_view view = {.struct_size = sizeof(sh_view)};
        check(sh_acquire(model->runtime, model->blocks[i], SH_STREAM_HOST, 0, &view));
        check(sh_read_block(model->runtime, model->blocks[i], SH_STREAM_HOST, 0, there, LAYER_BYTES));
        if (memcmp(there, model->weights[i], LAYER_BYTES) != 0) fail("a layer", "its bytes are wrong");
        check(sh_release(model->runtime, model->blocks[i], SH_STREAM_HOST));
    }
    check(sh_step_end(model->runtime));
    free(there);
}

static inline sh_block_state info_of(const struct model* model, int layer) {
    sh_block_state info = {.struct_size = sizeof(sh_block_state)};
    check(sh_block_get_state(model->runtime, model->blocks[layer], &info));
    return info;
}

static inline sh_runtime_stats stats_of(const struct model* model) {
    sh_runtime_stats stats = {.struct_size = sizeof(sh_runtime_stats)};
    check(sh_runtime_get_stats(model->runtime, &stats));
    return stats;
}

static inline sh_memory_info memory_of(sh_device* device) {
    sh_memory_info memory = {.struct_size = sizeof(sh_memory_info)};
    check(sh_device_get_memory(device, &memory));
    return memory;
}

#endif
