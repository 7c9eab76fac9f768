/* Lays out the model's blocks and registers them. */
#include "blocks.h"

#include <stdio.h>
#include <stdlib.h>

/** Alignment of the tensors in a block. It is enough for any vector instruction. */
enum { TENSOR_ALIGNMENT = 64 };

enum { LONGEST_NAME = 128, MOST_TENSORS = LAYER_TENSORS };

static const char word_table[] = "embeddings.word_embeddings.weight";

/** A tensor of a block: its name in the file after the block's prefix, and its shape. */
struct part {
    const char* name;
    int rows; /**< 0 for a vector. */
    int columns;
};

static void list_embedding_parts(const struct config* config, struct part parts[EMBEDDING_TENSORS]) {
    const int hidden = config->hidden;

    parts[POSITION_TABLE] = (struct part){"position_embeddings.weight", config->positions, hidden};
    parts[TOKEN_TYPE_TABLE] = (struct part){"token_type_embeddings.weight", config->token_types, hidden};
    parts[EMBEDDING_NORM_WEIGHT] = (struct part){"LayerNorm.weight", 0, hidden};
    parts[EMBEDDING_NORM_BIAS] = (struct part){"LayerNorm.bias", 0, hidden};
}

static void list_layer_parts(const struct config* config, struct part parts[LAYER_TENSORS]) {
    const int hidden = config->hidden;
    const int middle = config->intermediate;

    parts[QUERY_WEIGHT] = (struct part){"attention.self.query.weight", hidden, hidden};
    parts[QUERY_BIAS] = (struct part){"attention.self.query.bias", 0, hidden};
    parts[KEY_WEIGHT] = (struct part){"attention.self.key.weight", hidden, hidden};
    parts[KEY_BIAS] = (struct part){"attention.self.key.bias", 0, hidden};
    parts[VALUE_WEIGHT] = (struct part){"attention.self.value.weight", hidden, hidden};
    parts[VALUE_BIAS] = (struct part){"attention.self.value.bias", 0, hidden};
    parts[ATTENTION_WEIGHT] = (struct part){"attention.output.dense.weight", hidden, hidden};
    parts[ATTENTION_BIAS] = (struct part){"attention.output.dense.bias", 0, hidden};
    parts[ATTENTION_NORM_WEIGHT] = (struct part){"attention.output.LayerNorm.weight", 0, hidden};
    parts[ATTENTION_NORM_BIAS] = (struct part){"attention.output.LayerNorm.bias", 0, hidden};
    parts[INTERMEDIATE_WEIGHT] = (struct part){"intermediate.dense.weight", middle, hidden};
    parts[INTERMEDIATE_BIAS] = (struct part){"intermediate.dense.bias", 0, middle};
    parts[OUTPUT_WEIGHT] = (struct part){"output.dense.weight", hidden, middle};
    parts[OUTPUT_BIAS] = (struct part){"output.dense.bias", 0, hidden};
    parts[OUTPUT_NORM_WEIGHT] = (struct part){"output.LayerNorm.weight", 0, hidden};
    parts[OUTPUT_NORM_BIAS] = (struct part){"output.LayerNorm.bias", 0, hidden};
}

/** Lays the parts out one after the other. Returns the size of the block. */
static uint64_t lay_out_parts(const struct part* parts, size_t count, uint64_t* offsets) {
    uint64_t end = 0;

    for (size_t i = 0; i < count; i++) {
        offsets[i] = end;
        end += (uint64_t)(parts[i].rows == 0 ? 1 : parts[i].rows) * (uint64_t)parts[i].columns * sizeof(float);
        end = (end + TENSOR_ALIGNMENT - 1) / TENSOR_ALIGNMENT * TENSOR_ALIGNMENT;
    }
    return end;
}

bool blocks_lay_out(const struct config* config, struct blocks* out, struct error* error) {
    struct blocks blocks = {0};
    struct part parts[MOST_TENSORS];

    list_embedding_parts(config, parts);
    const uint64_t embedding_bytes = lay_out_parts(parts, EMBEDDING_TENSORS, blocks.embedding_offsets);
    list_layer_parts(config, parts);
    const uint64_t layer_bytes = lay_out_parts(parts, LAYER_TENSORS, blocks.layer_offsets);
    blocks.largest_bytes = layer_bytes > embedding_bytes ? layer_bytes : embedding_bytes;
    blocks.shard_bytes = (uint64_t)SHARD_ROWS * (uint64_t)config->hidden * sizeof(float);
    blocks.shard_count = ((size_t)config->vocabulary + SHARD_ROWS - 1) / SHARD_ROWS;
    blocks.layers = calloc((size_t)config->layers, sizeof *blocks.layers);
    blocks.shards = calloc(blocks.shard_count, sizeof *blocks.shards);
    if (blocks.layers == NULL || blocks.shards == NULL) {
        blocks_free(&blocks);
        return error_out_of_memory(error);
    }
    *out = blocks;
    return true;
}

void blocks_free(struct blocks* blocks) {
    free(blocks->layers);
    free(blocks->shards);
    *blocks = (struct blocks){0};
}

static sh_segment file_segment(const struct safetensors* model, uint64_t offset, uint64_t file_offset, uint64_t bytes) {
    sh_segment segment = SH_SEGMENT_INIT;

    segment.kind = SH_SOURCE_FILE;
    segment.offset = offset;
    segment.bytes = bytes;
    segment.file = model->file;
    segment.file_offset = file_offset;
    return segment;
}

/** Registers one block, with one segment for each of its tensors. */
static bool register_parts(sh_runtime* runtime, const struct safetensors* model, const char* prefix,
                           const struct part* parts, const uint64_t* offsets, size_t count, sh_block* out,
                           struct error* error) {
    sh_segment segments[MOST_TENSORS];
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    char name[LONGEST_NAME];
    const struct tensor* tensor = NULL;

    for (size_t i = 0; i < count; i++) {
        snprintf(name, sizeof name, "%s.%s", prefix, parts[i].name);
        if (!safetensors_find(model, name, (uint64_t)parts[i].rows, (uint64_t)parts[i].columns, &tensor, error))
            return false;
        segments[i] = file_segment(model, offsets[i], tensor->file_offset, tensor->bytes);
    }
    desc.name = prefix;
    desc.segments = segments;
    desc.segment_count = count;
    desc.bytes = offsets[count - 1] + tensor->bytes;
    const sh_status status = sh_register_blocks(runtime, &desc, 1, out);
    return status >= 0 || blocks_error(error, "registering a block", status);
}

/**
 * Registers the word table. The shards that a sentence needs are not known in advance, so they are outside the
 * order.
 */
static bool register_shards(struct blocks* blocks, sh_runtime* runtime, const struct safetensors* model,
                            const struct config* config, struct error* error) {
    const struct tensor* table = NULL;
    sh_segment* segments = malloc(blocks->shard_count * sizeof *segments);
    sh_block_desc* descs = malloc(blocks->shard_count * sizeof *descs);
    bool ok = (segments != NULL && descs != NULL) || error_out_of_memory(error);

    ok = ok &&
         safetensors_find(model, word_table, (uint64_t)config->vocabulary, (uint64_t)config->hidden, &table, error);
    for (size_t i = 0; ok && i < blocks->shard_count; i++) {
        const uint64_t begin = i * blocks->shard_bytes;
        const uint64_t rest = table->bytes - begin;
        const uint64_t bytes = rest < blocks->shard_bytes ? rest : blocks->shard_bytes;
        segments[i] = file_segment(model, 0, table->file_offset + begin, bytes);
        descs[i] = (sh_block_desc)SH_BLOCK_DESC_INIT;
        descs[i].flags = SH_BLOCK_UNORDERED;
        descs[i].bytes = bytes;
        descs[i].segments = &segments[i];
        descs[i].segment_count = 1;
        descs[i].name = word_table;
    }
    if (ok) {
        const sh_status status = sh_register_blocks(runtime, descs, blocks->shard_count, blocks->shards);
        ok = status >= 0 || blocks_error(error, "registering the word table", status);
    }
    free(segments);
    free(descs);
    return ok;
}

bool blocks_register(struct blocks* blocks, sh_runtime* runtime, const struct safetensors* model,
                     const struct config* config, struct error* error) {
    struct part parts[MOST_TENSORS];
    char prefix[LONGEST_NAME / 2];

    list_embedding_parts(config, parts);
    if (!register_parts(runtime, model, "embeddings", parts, blocks->embedding_offsets, EMBEDDING_TENSORS,
                        &blocks->embeddings, error))
        return false;
    list_layer_parts(config, parts);
    for (int layer = 0; layer < config->layers; layer++) {
        snprintf(prefix, sizeof prefix, "encoder.layer.%d", layer);
        if (!register_parts(runtime, model, prefix, parts, blocks->layer_offsets, LAYER_TENSORS, &blocks->layers[layer],
                            error))
            return false;
    }
    return register_shards(blocks, runtime, model, config, error);
}

bool blocks_error(struct error* error, const char* what, sh_status status) {
    char text[sizeof error->text / 2] = "";

    sh_last_error(text, sizeof text);
    return error_set(error, "%s: %s: %s", what, sh_status_string(status), text);
}
