/*
 * The blocks of the model: the tensors of each block, and their offsets in it. There is one block for the small tables
 * before the first layer, one block for each layer, and the word table in shards of rows.
 */
#ifndef MINILM_BLOCKS_H
#define MINILM_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <stagehand/stagehand.h>

#include "config.h"
#include "error.h"
#include "safetensors.h"

/** The tensors of the embeddings block. Tables are stored row by row. */
enum embedding_tensor {
    POSITION_TABLE,
    TOKEN_TYPE_TABLE,
    EMBEDDING_NORM_WEIGHT,
    EMBEDDING_NORM_BIAS,
    EMBEDDING_TENSORS
};

/** The tensors of a layer's block. Matrices have one row per output: y = W x + bias. */
enum layer_tensor {
    QUERY_WEIGHT,
    QUERY_BIAS,
    KEY_WEIGHT,
    KEY_BIAS,
    VALUE_WEIGHT,
    VALUE_BIAS,
    ATTENTION_WEIGHT,
    ATTENTION_BIAS,
    ATTENTION_NORM_WEIGHT,
    ATTENTION_NORM_BIAS,
    INTERMEDIATE_WEIGHT,
    INTERMEDIATE_BIAS,
    OUTPUT_WEIGHT,
    OUTPUT_BIAS,
    OUTPUT_NORM_WEIGHT,
    OUTPUT_NORM_BIAS,
    LAYER_TENSORS
};

/**
 * Number of rows of the word table in one shard. The number is small, because a token needs only one row. It is
 * larger than one, because the cost of a load is more than the cost of its bytes.
 */
enum { SHARD_ROWS = 64 };

/** The blocks of a model. */
struct blocks {
    sh_block embeddings;
    sh_block* layers; /**< config.layers entries. */
    sh_block* shards; /**< The word table: row r is in shard r / SHARD_ROWS. */
    size_t shard_count;
    uint64_t embedding_offsets[EMBEDDING_TENSORS]; /**< Offset of each tensor in its block, in bytes. */
    uint64_t layer_offsets[LAYER_TENSORS];
    uint64_t shard_bytes;
    uint64_t largest_bytes; /**< The largest of the embeddings and the layers. */
};

/**
 * Fills all members except the ids: sizes and offsets, which the runtime's options depend on. After a success the
 * caller calls blocks_free().
 */
bool blocks_lay_out(const struct config* config, struct blocks* out, struct error* error);

/** Registers the blocks with the file as their source, and fills the ids. The library opens the file for itself. */
bool blocks_register(struct blocks* blocks, sh_runtime* runtime, const struct safetensors* model,
                     const struct config* config, struct error* error);

/** A struct of zeros is allowed. */
void blocks_free(struct blocks* blocks);

/** Writes `what` and the library's text of this thread's last error. Returns false. */
bool blocks_error(struct error* error, const char* what, sh_status status);

#endif
