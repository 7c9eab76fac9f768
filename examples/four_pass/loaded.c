/* A model on the device: its runtime, and a pass over its layers. */
#include "loaded.h"

#include <stdio.h>
#include <stdlib.h>

#include "weights.h"

/** Lays the layers out one after the other. */
static bool lay_out(struct loaded* loaded, const struct options* options, struct error* error) {
    uint64_t largest = 1;
    size_t i = 0;

    loaded->count = model_block_count(loaded->model);
    loaded->bytes = model_bytes(loaded->model, options->scale);
    loaded->workspace_bytes = (uint64_t)(loaded->model->workspace_bytes * options->scale);
    loaded->blocks = calloc(loaded->count, sizeof *loaded->blocks);
    if (loaded->blocks == NULL) return error_out_of_memory(error);
    for (const struct layers* layers = loaded->model->layers; layers->name != NULL; layers++)
        for (unsigned n = 0; n < layers->count; n++, i++) {
            struct block* const block = &loaded->blocks[i];
            block->bytes = layer_bytes(layers, options->scale);
            block->compute_ns = layer_compute_ns(layers, options->scale, options->operations_per_second);
            block->seed = (uint64_t)(loaded->model - models) * 1000 + i;
            block->loaded = loaded;
            loaded->compute_ns += block->compute_ns;
            if (block->bytes > largest) largest = block->bytes;
        }
    loaded->verify = options->verify;
    if (loaded->verify && !loaded->machine->host_addressable && (loaded->buffer = malloc(largest)) == NULL)
        return error_out_of_memory(error);
    return true;
}

static bool register_blocks(struct loaded* loaded, struct error* error) {
    sh_segment* const segments = malloc(loaded->count * sizeof *segments);
    sh_block_desc* const descs = malloc(loaded->count * sizeof *descs);
    sh_block* const ids = malloc(loaded->count * sizeof *ids);
    char(*const names)[48] = malloc(loaded->count * sizeof *names);
    bool ok = (segments != NULL && descs != NULL && ids != NULL && names != NULL) || error_out_of_memory(error);
    char* at = loaded->weights;
    size_t i = 0;

    for (const struct layers* layers = loaded->model->layers; ok && layers->name != NULL; layers++)
        for (unsigned n = 0; n < layers->count; n++, i++) {
            const struct block* const block = &loaded->blocks[i];
            if (loaded->verify) weights_fill(at, block->bytes, block->seed);
            segments[i] = (sh_segment)SH_SEGMENT_INIT;
            segments[i].kind = SH_SOURCE_POINTER;
            segments[i].pointer = at;
            segments[i].bytes = block->bytes;
            snprintf(names[i], sizeof names[i], layers->count > 1 ? "%s %u" : "%s", layers->name, n);
            descs[i] = (sh_block_desc)SH_BLOCK_DESC_INIT;
            descs[i].bytes = block->bytes;
            descs[i].segments = &segments[i];
            descs[i].segment_count = 1;
            descs[i].name = names[i];
            at += block->bytes;
        }
    ok = ok && succeeded(sh_register_blocks(loaded->runtime, descs, loaded->count, ids), loaded->model->name, error);
    for (i = 0; ok && i < loaded->count; i++) loaded->blocks[i].id = ids[i];
    free(segments);
    free(descs);
    free(ids);
    free(names);
    return ok;
}

/** Tells the library the order of the layers, and the compute time of each layer. */
static bool tell_order(struct loaded* loaded, struct error* error) {
    sh_use* const uses = malloc(loaded->count * sizeof *uses);

    if (uses == NULL) return error_out_of_memory(error);
    for (size_t i = 0; i < loaded->count; i++) {
        uses[i] = (sh_use)SH_USE_INIT;
        uses[i].block = loaded->blocks[i].id;
        uses[i].compute_ns = loaded->blocks[i].compute_ns;
    }
    const bool ok = succeeded(sh_set_schedule(loaded->runtime, uses, loaded->count), loaded->model->name, error);
    free(uses);
    return ok;
}

bool loaded_open(struct loaded* loaded, const struct model* model, struct machine* machine,
                 const struct options* options, uint64_t max_bytes, struct error* error) {
    sh_runtime_options created = SH_RUNTIME_OPTIONS_INIT;

    *loaded = (struct loaded){.model = model, .machine = machine};
    created.name = model->name;
    created.max_bytes = max_bytes;
    return lay_out(loaded, options, error) && weights_allocate(machine, loaded->bytes, &loaded->weights, error) &&
           succeeded(sh_runtime_create(machine->device, &created, &loaded->runtime), model->name, error) &&
           register_blocks(loaded, error) && tell_order(loaded, error);
}

void loaded_close(struct loaded* loaded) {
    sh_runtime_destroy(loaded->runtime);
    if (loaded->machine != NULL) weights_free(loaded->machine, loaded->weights, loaded->bytes);
    free(loaded->buffer);
    free(loaded->blocks);
}

static void note(struct block* block, const void* bytes) {
    block->loaded->compared_bytes += block->bytes;
    block->loaded->wrong_layers += !weights_are(bytes, block->bytes, block->seed);
}

/**
 * Runs on the stream if the host can read the device's memory. At that time the bytes are there, and no other bytes
 * have replaced them yet.
 */
static void compare_view(void* block) { note(block, ((struct block*)block)->address); }

/** The work on a layer. Here it only takes time. With --verify it reads the bytes that a kernel would read. */
static bool compute(struct loaded* loaded, struct block* block, const sh_view* view, struct error* error) {
    struct machine* const machine = loaded->machine;
    const bool on_stream = loaded->verify && machine->host_addressable;

    block->address = view->address;
    if (!succeeded(sh_stream_launch(machine->device, machine->stream, on_stream ? compare_view : NULL, block,
                                    (int64_t)block->compute_ns),
                   "computing", error))
        return false;
    if (loaded->verify && !on_stream) {
        if (!succeeded(sh_read_block(loaded->runtime, block->id, machine->stream, 0, loaded->buffer, block->bytes),
                       "reading back", error))
            return false;
        note(block, loaded->buffer);
    }
    return true;
}

/**
 * The clock of a simulation moves only if a caller waits. The engine waits after each layer, so that the timeline
 * shows the time of each layer.
 */
static bool let_time_pass(struct machine* machine, struct error* error) {
    return !machine->virtual_time ||
           succeeded(sh_stream_synchronize(machine->device, machine->stream), "computing", error);
}

bool loaded_run(struct loaded* loaded, struct error* error) {
    struct machine* const machine = loaded->machine;

    if (!succeeded(sh_step_begin(loaded->runtime, NULL), loaded->model->name, error)) return false;
    for (struct block* block = loaded->blocks; block < loaded->blocks + loaded->count; block++) {
        sh_view view = {.struct_size = sizeof(sh_view)};
        if (!succeeded(sh_acquire(loaded->runtime, block->id, machine->stream, 0, &view), loaded->model->name, error) ||
            !compute(loaded, block, &view, error) ||
            !succeeded(sh_release(loaded->runtime, block->id, machine->stream), loaded->model->name, error) ||
            !let_time_pass(machine, error) || !machine_watch(machine, error))
            return false;
    }
    return succeeded(sh_step_end(loaded->runtime), loaded->model->name, error) &&
           succeeded(sh_stream_synchronize(machine->device, machine->stream), loaded->model->name, error);
}

bool loaded_stats(const struct loaded* loaded, sh_runtime_stats* out, struct error* error) {
    *out = (sh_runtime_stats){.struct_size = sizeof(sh_runtime_stats)};
    return succeeded(sh_runtime_get_stats(loaded->runtime, out), loaded->model->name, error);
}

bool loaded_present(const struct loaded* loaded, uint64_t* out_bytes, struct error* error) {
    *out_bytes = 0;
    for (size_t i = 0; i < loaded->count; i++) {
        sh_block_state state = {.struct_size = sizeof(sh_block_state)};
        if (!succeeded(sh_block_get_state(loaded->runtime, loaded->blocks[i].id, &state), loaded->model->name, error))
            return false;
        *out_bytes += state.present_bytes;
    }
    return true;
}

bool loaded_fits(const struct loaded* loaded, const char* what, struct error* error) {
    sh_plan_options options = SH_PLAN_OPTIONS_INIT;

    options.flags = SH_PLAN_DRY_RUN;
    return succeeded(sh_plan(loaded->runtime, &options, NULL), what, error);
}

bool loaded_whole(const struct loaded* loaded, uint64_t* out_bytes, struct error* error) {
    sh_plan_options options = SH_PLAN_OPTIONS_INIT;
    sh_plan_info plan = {.struct_size = sizeof(sh_plan_info)};

    options.flags = SH_PLAN_DRY_RUN;
    options.budget_bytes = UINT64_MAX; /* a budget without limit */
    if (!succeeded(sh_plan(loaded->runtime, &options, &plan), loaded->model->name, error)) return false;
    *out_bytes = plan.budget_bytes;
    return true;
}
