/*
 * The weights, which libstagehand streams: this file opens the device, acquires and releases. (blocks.h registers the
 * blocks; no other file of this engine knows the library.) A pointer from an acquire is valid until the matching
 * release. In between the bytes are there. Before and after, the memory holds other weights.
 *
 *     weights_step_begin();
 *     weights_gather_words();                        the rows of the word table that the tokens need
 *     weights_acquire_embeddings();  ...  weights_release_embeddings();
 *     for each layer: weights_acquire_layer();  compute;  weights_release_layer();
 *     weights_step_end();
 *
 * Only one thread at a time may use the weights.
 */
#ifndef MINILM_WEIGHTS_H
#define MINILM_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "blocks.h"
#include "config.h"
#include "error.h"

struct weights;

struct weights_options {
    const char* device; /**< A name for sh_device_open(). The host must be able to address the memory of the device. */
    double budget_percent; /**< Part of the file's tensors; used if `budget_bytes` is 0. */
    uint64_t budget_bytes; /**< Ceiling on device memory. If both are 0 there is no ceiling, and everything stays on the
                              device. */
    bool learn_order;      /**< Do not set the order of the layers: the library learns it from the first step. */
};

/** Opens `directory`/model.safetensors on a device. After a success the caller calls weights_close(). */
bool weights_open(const char* directory, const struct config* config, const struct weights_options* options,
                  struct weights** out, struct error* error);

/** NULL is allowed. */
void weights_close(struct weights* weights);

bool weights_step_begin(struct weights* weights, struct error* error);
bool weights_step_end(struct weights* weights, struct error* error);

/** Copies row ids[i] of the word table to rows + i * hidden. Loads only the shards that hold these rows. */
bool weights_gather_words(struct weights* weights, const int32_t* ids, size_t count, float* rows, struct error* error);

/** Returns pointers to the tensors, by enum embedding_tensor. */
bool weights_acquire_embeddings(struct weights* weights, const float* out[EMBEDDING_TENSORS], struct error* error);
bool weights_release_embeddings(struct weights* weights, struct error* error);

/** Returns pointers to the tensors, by enum layer_tensor. */
bool weights_acquire_layer(struct weights* weights, int layer, const float* out[LAYER_TENSORS], struct error* error);
bool weights_release_layer(struct weights* weights, int layer, struct error* error);

/** The figures of the streaming so far. */
struct weights_report {
    uint64_t model_bytes;  /**< All tensors of the file. */
    uint64_t budget_bytes; /**< 0 if no ceiling was set. */
    uint64_t peak_device_bytes;
    uint64_t copied_bytes; /**< To the device. */
    uint64_t steps;
    uint64_t hits;     /**< Acquires that found the bytes there or on their way. */
    uint64_t misses;   /**< Acquires that had to begin a load. */
    uint64_t stall_ns; /**< Time that acquires waited. */
};

bool weights_read_report(struct weights* weights, struct weights_report* out, struct error* error);

#endif
