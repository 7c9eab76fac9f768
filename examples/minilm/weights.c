/* The weights of the model, which libstagehand streams. */
#include "weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/**
 * The word table gets room for at least LEAST_SHARDS shards at once. It also gets a part of the budget that the
 * largest block leaves: 1 / SHARD_SHARE.
 */
enum { LEAST_SHARDS = 4, SHARD_SHARE = 4 };

struct weights {
    struct config config;
    struct blocks blocks;
    sh_device* device;
    sh_runtime* runtime;
    uint64_t model_bytes;
    uint64_t budget_bytes;
    size_t shards_at_once; /**< Number of shards that always fit the memory for unordered blocks. */
    uint32_t* wanted;      /**< The shards that a gather needs, and for each shard whether the gather needs it. */
    bool* is_wanted;
    sh_block* chunk; /**< Shards that are acquired together, and their views. */
    sh_view* views;
};

static uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

/**
 * Returns the largest power of two that divides `bytes`. A shard has memory of its own in whole pages, and pages of
 * this size waste none of it.
 */
static uint64_t largest_power_of_two(uint64_t bytes) { return bytes & (~bytes + 1); }

/** Opens the device. Refuses a device whose memory the host cannot read, because this engine computes on the host. */
static bool open_device(struct weights* weights, const char* name, sh_device_caps* caps, struct error* error) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    char what[128];

    options.budget_bytes = weights->budget_bytes;
    options.page_bytes = largest_power_of_two(weights->blocks.shard_bytes);
    snprintf(what, sizeof what, "device %s", name);
    sh_status status = sh_device_open(name, &options, &weights->device);
    if (status < 0) return blocks_error(error, what, status);
    status = sh_device_get_caps(weights->device, caps);
    if (status < 0) return blocks_error(error, what, status);
    if (!(caps->flags & SH_DEVICE_HOST_ADDRESSABLE) || (caps->flags & SH_DEVICE_VIRTUAL_TIME))
        return error_set(
            error,
            "device %s: the host cannot read its memory, but this engine computes on the host; use the device host",
            name);
    return true;
}

/** Returns the device memory that the shards of the word table share. The layers get the rest. */
static uint64_t shard_memory(const struct weights* weights, uint64_t page_bytes) {
    const uint64_t shard = round_up(weights->blocks.shard_bytes, page_bytes);
    const uint64_t table = weights->blocks.shard_count * shard;
    uint64_t bytes = LEAST_SHARDS * shard;

    if (weights->budget_bytes == 0) return table;
    if (weights->budget_bytes > weights->blocks.largest_bytes &&
        (weights->budget_bytes - weights->blocks.largest_bytes) / SHARD_SHARE > bytes)
        bytes = (weights->budget_bytes - weights->blocks.largest_bytes) / SHARD_SHARE / shard * shard;
    return bytes < table ? bytes : table;
}

static bool create_runtime(struct weights* weights, uint64_t page_bytes, struct error* error) {
    sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;

    options.name = "minilm";
    options.max_held = 1;
    options.unordered_bytes = shard_memory(weights, page_bytes);
    weights->shards_at_once = options.unordered_bytes / round_up(weights->blocks.shard_bytes, page_bytes);
    const sh_status status = sh_runtime_create(weights->device, &options, &weights->runtime);
    return status >= 0 || blocks_error(error, "creating the runtime", status);
}

/**
 * Sets the order: the embeddings, then layer after layer. Plans at once, so that a budget that is too small is
 * reported now.
 */
static bool set_order(struct weights* weights, struct error* error) {
    const size_t count = (size_t)weights->config.layers + 1;
    sh_use* uses = malloc(count * sizeof *uses);

    if (uses == NULL) return error_out_of_memory(error);
    for (size_t i = 0; i < count; i++) {
        uses[i] = (sh_use)SH_USE_INIT;
        uses[i].block = i == 0 ? weights->blocks.embeddings : weights->blocks.layers[i - 1];
    }
    sh_status status = sh_set_schedule(weights->runtime, uses, count);
    free(uses);
    if (status < 0) return blocks_error(error, "setting the order", status);
    status = sh_plan(weights->runtime, NULL, NULL);
    return status >= 0 || blocks_error(error, "planning", status);
}

static bool allocate_gather(struct weights* weights, struct error* error) {
    const size_t shards = weights->blocks.shard_count;

    weights->wanted = malloc(shards * sizeof *weights->wanted);
    weights->is_wanted = calloc(shards, sizeof *weights->is_wanted);
    weights->chunk = malloc(shards * sizeof *weights->chunk);
    weights->views = malloc(shards * sizeof *weights->views);
    return (weights->wanted != NULL && weights->is_wanted != NULL && weights->chunk != NULL &&
            weights->views != NULL) ||
           error_out_of_memory(error);
}

static bool open_all(struct weights* weights, const struct safetensors* model, const struct weights_options* options,
                     struct error* error) {
    sh_device_caps caps = {.struct_size = sizeof(sh_device_caps)};

    weights->model_bytes = model->tensor_bytes;
    weights->budget_bytes = options->budget_bytes;
    if (weights->budget_bytes == 0 && options->budget_percent > 0) {
        weights->budget_bytes = (uint64_t)(options->budget_percent / 100 * (double)model->tensor_bytes);
        weights->budget_bytes += weights->budget_bytes == 0; /* 0 would mean no ceiling. */
    }
    return blocks_lay_out(&weights->config, &weights->blocks, error) &&
           open_device(weights, options->device, &caps, error) && create_runtime(weights, caps.page_bytes, error) &&
           blocks_register(&weights->blocks, weights->runtime, model, &weights->config, error) &&
           (options->learn_order || set_order(weights, error)) && allocate_gather(weights, error);
}

bool weights_open(const char* directory, const struct config* config, const struct weights_options* options,
                  struct weights** out, struct error* error) {
    char path[4096];
    struct safetensors model = {.file = -1};
    struct weights* weights = calloc(1, sizeof *weights);

    if (weights == NULL) return error_out_of_memory(error);
    weights->config = *config;
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    const bool ok = safetensors_open(path, &model, error) && open_all(weights, &model, options, error);
    safetensors_close(&model);
    if (!ok) {
        weights_close(weights);
        return false;
    }
    *out = weights;
    return true;
}

void weights_close(struct weights* weights) {
    if (weights == NULL) return;
    sh_runtime_destroy(weights->runtime);
    sh_device_close(weights->device);
    blocks_free(&weights->blocks);
    free(weights->wanted);
    free(weights->is_wanted);
    free(weights->chunk);
    free(weights->views);
    free(weights);
}

bool weights_step_begin(struct weights* weights, struct error* error) {
    const sh_status status = sh_step_begin(weights->runtime, NULL);
    return status >= 0 || blocks_error(error, "beginning a step", status);
}

bool weights_step_end(struct weights* weights, struct error* error) {
    const sh_status status = sh_step_end(weights->runtime);
    return status >= 0 || blocks_error(error, "ending a step", status);
}

/** Acquires a block on the calling thread and returns pointers to its tensors. */
static bool acquire_block(struct weights* weights, sh_block block, const uint64_t* offsets, size_t count,
                          const float** out, struct error* error) {
    sh_view view = {.struct_size = sizeof(sh_view)};
    const sh_status status = sh_acquire(weights->runtime, block, SH_STREAM_HOST, 0, &view);

    if (status < 0) return blocks_error(error, "acquiring a block", status);
    for (size_t i = 0; i < count; i++) out[i] = (const float*)(const void*)((const char*)view.address + offsets[i]);
    return true;
}

static bool release_block(struct weights* weights, sh_block block, struct error* error) {
    const sh_status status = sh_release(weights->runtime, block, SH_STREAM_HOST);
    return status >= 0 || blocks_error(error, "releasing a block", status);
}

bool weights_acquire_embeddings(struct weights* weights, const float* out[EMBEDDING_TENSORS], struct error* error) {
    const struct blocks* blocks = &weights->blocks;
    return acquire_block(weights, blocks->embeddings, blocks->embedding_offsets, EMBEDDING_TENSORS, out, error);
}

bool weights_release_embeddings(struct weights* weights, struct error* error) {
    return release_block(weights, weights->blocks.embeddings, error);
}

bool weights_acquire_layer(struct weights* weights, int layer, const float* out[LAYER_TENSORS], struct error* error) {
    const struct blocks* blocks = &weights->blocks;
    return acquire_block(weights, blocks->layers[layer], blocks->layer_offsets, LAYER_TENSORS, out, error);
}

bool weights_release_layer(struct weights* weights, int layer, struct error* error) {
    return release_block(weights, weights->blocks.layers[layer], error);
}

/** Lists the shards that hold the rows, each shard once. */
static size_t list_shards(struct weights* weights, const int32_t* ids, size_t count) {
    size_t wanted = 0;

    for (size_t i = 0; i < count; i++) {
        const uint32_t shard = (uint32_t)ids[i] / SHARD_ROWS;
        if (!weights->is_wanted[shard]) weights->wanted[wanted++] = shard;
        weights->is_wanted[shard] = true;
    }
    for (size_t i = 0; i < wanted; i++) weights->is_wanted[weights->wanted[i]] = false;
    return wanted;
}

/** Copies the rows that are in one shard. */
static void copy_rows(const struct weights* weights, uint32_t shard, const sh_view* view, const int32_t* ids,
                      size_t count, float* rows) {
    const size_t hidden = (size_t)weights->config.hidden;
    const float* table = view->address;

    for (size_t i = 0; i < count; i++)
        if ((uint32_t)ids[i] / SHARD_ROWS == shard)
            memcpy(rows + i * hidden, table + (uint32_t)ids[i] % SHARD_ROWS * hidden, hidden * sizeof *rows);
}

/** Holds some shards at once, so that their loads overlap, and copies from them. */
static bool gather_from(struct weights* weights, const uint32_t* shards, size_t shard_count, const int32_t* ids,
                        size_t count, float* rows, struct error* error) {
    for (size_t i = 0; i < shard_count; i++) {
        weights->chunk[i] = weights->blocks.shards[shards[i]];
        weights->views[i] = (sh_view){.struct_size = sizeof(sh_view)};
    }
    sh_status status =
        sh_acquire_many(weights->runtime, weights->chunk, shard_count, SH_STREAM_HOST, 0, weights->views);
    if (status < 0) return blocks_error(error, "acquiring rows of the word table", status);
    for (size_t i = 0; i < shard_count; i++) copy_rows(weights, shards[i], &weights->views[i], ids, count, rows);
    for (size_t i = 0; i < shard_count && status >= 0; i++)
        status = sh_release(weights->runtime, weights->chunk[i], SH_STREAM_HOST);
    return status >= 0 || blocks_error(error, "releasing rows of the word table", status);
}

bool weights_gather_words(struct weights* weights, const int32_t* ids, size_t count, float* rows, struct error* error) {
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= weights->config.vocabulary)
            return error_set(error, "token %" PRId32 " is not in the word table of %d rows", ids[i],
                             weights->config.vocabulary);

    const size_t wanted = list_shards(weights, ids, count);
    for (size_t begin = 0; begin < wanted; begin += weights->shards_at_once) {
        const size_t rest = wanted - begin;
        const size_t chunk = rest < weights->shards_at_once ? rest : weights->shards_at_once;
        if (!gather_from(weights, weights->wanted + begin, chunk, ids, count, rows, error)) return false;
    }
    return true;
}

bool weights_read_report(struct weights* weights, struct weights_report* out, struct error* error) {
    sh_runtime_stats stats = {.struct_size = sizeof(sh_runtime_stats)};
    sh_memory_info memory = {.struct_size = sizeof(sh_memory_info)};
    sh_status status = sh_runtime_get_stats(weights->runtime, &stats);

    if (status >= 0) status = sh_device_get_memory(weights->device, &memory);
    if (status < 0) return blocks_error(error, "reading the counters", status);
    *out = (struct weights_report){
        .model_bytes = weights->model_bytes,
        .budget_bytes = weights->budget_bytes,
        .peak_device_bytes = memory.peak_bytes,
        .copied_bytes = stats.bytes_to_device,
        .steps = stats.steps,
        .hits = stats.hits,
        .misses = stats.misses,
        .stall_ns = stats.stall_ns,
    };
    return true;
}
