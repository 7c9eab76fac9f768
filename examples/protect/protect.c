/*
 * Protects blocks of a model that streams. The blocks stay on the device as a whole when another model comes, and when
 * the library makes new plans.
 *
 *     protect [DEVICE]
 *
 * In other languages: protect.cpp, protect.py and protect.rs.
 */
#include <stagehand/stagehand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODEL_LAYERS = 12, LAYER_BYTES = 4 << 20, BUDGET = 24 << 20, PROTECTED = 2 };

static const int protected_layers[PROTECTED] = {0, 7};

static void fail(const char* what, const char* text) {
    fprintf(stderr, "protect: %s: %s\n", what, text);
    exit(1);
}

static void check(sh_status status) {
    char text[1024] = "";
    if (status >= 0) return;
    sh_last_error(text, sizeof text);
    fail(sh_status_string(status), text);
}

static void expect(int holds, const char* what) {
    if (!holds) fail("this does not hold", what);
    puts(what);
}

static void* allocate(size_t bytes) {
    void* memory = malloc(bytes);
    if (memory == NULL) fail("out of memory", "");
    return memory;
}

/* A model. All bytes of layer i have the value `first` + i. */
struct model {
    sh_runtime* runtime;
    int layers;
    sh_block blocks[MODEL_LAYERS];
    unsigned char* weights[MODEL_LAYERS];
};

static struct model make(sh_device* device, const char* name, int layers, int first) {
    struct model made = {NULL, layers, {0}, {NULL}};
    sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
    options.name = name;
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

static void destroy(struct model* model) {
    sh_runtime_destroy(model->runtime);
    for (int i = 0; i < model->layers; ++i) free(model->weights[i]);
}

/* One pass over a model. It compares every byte instead of computing. */
static void step(const struct model* model) {
    unsigned char* there = allocate(LAYER_BYTES);
    check(sh_step_begin(model->runtime, NULL));
    for (int i = 0; i < model->layers; ++i) {
        sh_view view = SH_VIEW_INIT;
        check(sh_acquire(model->runtime, model->blocks[i], SH_STREAM_HOST, 0, &view));
        check(sh_read_block(model->runtime, model->blocks[i], SH_STREAM_HOST, 0, there, LAYER_BYTES));
        if (memcmp(there, model->weights[i], LAYER_BYTES) != 0) fail("a layer", "its bytes are wrong");
        check(sh_release(model->runtime, model->blocks[i], SH_STREAM_HOST));
    }
    check(sh_step_end(model->runtime));
    free(there);
}

static sh_block_state info_of(const struct model* model, int layer) {
    sh_block_state info = SH_BLOCK_STATE_INIT;
    check(sh_block_get_state(model->runtime, model->blocks[layer], &info));
    return info;
}

static sh_runtime_stats stats_of(const struct model* model) {
    sh_runtime_stats stats = SH_RUNTIME_STATS_INIT;
    check(sh_runtime_get_stats(model->runtime, &stats));
    return stats;
}

static sh_memory_info memory_of(sh_device* device) {
    sh_memory_info memory = SH_MEMORY_INFO_INIT;
    check(sh_device_get_memory(device, &memory));
    return memory;
}

/* Returns true if the protected layers are on the device as a whole, in memory of their own. */
static int stays(const struct model* model) {
    for (int i = 0; i < PROTECTED; ++i) {
        const sh_block_state info = info_of(model, protected_layers[i]);
        if (info.present_bytes != LAYER_BYTES || info.resident_bytes != LAYER_BYTES) return 0;
    }
    return 1;
}

/* The result grows if one of the protected layers is loaded. */
static uint64_t loads(const struct model* model) {
    uint64_t sum = 0;
    for (int i = 0; i < PROTECTED; ++i) sum += info_of(model, protected_layers[i]).serial;
    return sum;
}

int main(int argc, char** argv) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    sh_device* device;
    sh_block blocks[PROTECTED];
    if (argc > 2) fail("usage", "protect [DEVICE]");
    options.budget_bytes = BUDGET;
    check(sh_device_open(argc > 1 ? argv[1] : "host", &options, &device));
    struct model model = make(device, "model", MODEL_LAYERS, 1);
    step(&model);
    step(&model);
    expect(stats_of(&model).ring_bytes > 0, "the model streams");

    for (int i = 0; i < PROTECTED; ++i) blocks[i] = model.blocks[protected_layers[i]];
    check(sh_protect_blocks(model.runtime, blocks, PROTECTED));
    check(sh_plan(model.runtime, NULL, NULL));
    step(&model);
    expect(stays(&model), "the protected layers stay on the device as a whole");
    const uint64_t before = loads(&model);
    struct model other = make(device, "other", MODEL_LAYERS, 101);
    for (int i = 0; i < 2; ++i) {
        step(&other);
        step(&model);
    }
    expect(stays(&model), "they stay when another model comes");
    check(sh_device_set_budget(device, BUDGET / 4 * 3));
    step(&other);
    step(&model);
    expect(stays(&model), "they stay when there is less memory");
    expect(loads(&model) == before, "none of them was loaded again");
    expect(memory_of(device).peak_bytes <= BUDGET, "the device never held more than its budget");
    destroy(&other);
    check(sh_unprotect_blocks(model.runtime, blocks, PROTECTED));
    for (int i = 0; i < MODEL_LAYERS; ++i)
        if (info_of(&model, i).protections != 0) fail("a layer", "it is still protected");
    puts("without protection they are layers like the others");

    destroy(&model);
    sh_device_close(device);
    return 0;
}
