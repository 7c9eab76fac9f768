/*
 * Two models share a device. One model reserves the memory that it streams with, and keeps its memory. It lets the
 * other model in as a guest for a time.
 *
 *     reserve_and_guest [DEVICE]
 *
 * In other languages: reserve_and_guest.cpp, reserve_and_guest.py and reserve_and_guest.rs.
 */
#include <inttypes.h>
#include <stagehand/stagehand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYER_BYTES = 4 << 20, MODEL_LAYERS = 12, MODEL_MOST = 20 << 20, GUEST_LAYERS = 2, BUDGET = 40 << 20 };

static void fail(const char* what, const char* text) {
    fprintf(stderr, "reserve_and_guest: %s: %s\n", what, text);
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

static struct model make(sh_device* device, const char* name, int layers, int first, uint64_t max_bytes) {
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

/* Lets another model in with `bytes` for its blocks. 0 means all its blocks. Returns NULL if there is no room. */
static sh_scope* let_in(const struct model* guest, uint64_t bytes) {
    sh_guest_options options = SH_GUEST_OPTIONS_INIT;
    sh_scope* scope;
    options.bytes = bytes;
    const sh_status status = sh_guest_begin(guest->runtime, &options, &scope);
    if (status == SH_ERROR_BUDGET) return NULL;
    check(status);
    return scope;
}

int main(int argc, char** argv) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    sh_device* device;
    sh_scope* scope;
    if (argc > 2) fail("usage", "reserve_and_guest [DEVICE]");
    options.budget_bytes = BUDGET;
    check(sh_device_open(argc > 1 ? argv[1] : "host", &options, &device));
    struct model model = make(device, "model", MODEL_LAYERS, 1, MODEL_MOST);
    struct model guest = make(device, "guest", GUEST_LAYERS, 101, 0);
    step(&model);
    step(&model);
    expect(stats_of(&model).ring_bytes > 0, "the model streams");

    /* Reserve: no other model gets the memory that this model streams with. */
    check(sh_reserve(model.runtime, 0, SH_PRIORITY_PRIMARY));
    const uint64_t reserved = memory_of(device).reserved_bytes;
    expect(reserved > 0 && reserved <= MODEL_MOST, "it has reserved the memory that it streams with");
    expect(let_in(&guest, BUDGET - reserved / 2) == NULL, "a guest that needs a part of that memory is refused");

    /* Guest: the other model has all its layers on the device until the scope ends, and both models work. */
    scope = let_in(&guest, 0);
    if (scope == NULL) fail("the guest", "there is no room");
    step(&guest);
    step(&model);
    step(&guest);
    for (int i = 0; i < GUEST_LAYERS; ++i)
        if (info_of(&guest, i).present_bytes != LAYER_BYTES) fail("the guest", "it streams");
    puts("a guest that fits has all its layers on the device");
    check(sh_scope_end(scope));
    expect(stats_of(&guest).held_bytes == 0, "the guest has left and holds nothing");
    check(sh_release_reservation(model.runtime));
    expect(memory_of(device).reserved_bytes == 0, "nothing is reserved");

    /* Keep resident: no other model takes memory from this model. */
    step(&model);
    const uint64_t held = stats_of(&model).held_bytes;
    check(sh_keep_resident(model.runtime, &scope));
    expect(let_in(&guest, BUDGET - held / 2) == NULL, "a model that is kept resident gives nothing to a guest");
    expect(stats_of(&model).held_bytes == held, "it holds as much as before");
    check(sh_scope_end(scope));
    scope = let_in(&guest, BUDGET - held / 2);
    expect(scope != NULL && stats_of(&model).held_bytes < held, "afterwards it gives up a part of it");
    step(&model);
    check(sh_scope_end(scope));
    step(&model);
    expect(memory_of(device).peak_bytes <= BUDGET, "the device never held more than its budget");

    destroy(&guest);
    destroy(&model);
    sh_device_close(device);
    return 0;
}
