/*
 * The weights, by libstagehand: opening the device, acquiring and releasing. (What is registered is in
 * blocks.h; nothing else of this engine knows the library.) A pointer that an acquire gives is valid until
 * the matching release: in between the bytes are there, before and after the memory holds other weights.
 *
 *     weights_step_begin();
 *     weights_gather_words();                        the rows of the word table that the tokens need
 *     weights_acquire_embeddings();  ...  weights_release_embeddings();
 *     for each layer: weights_acquire_layer();  compute;  weights_release_layer();
 *     weights_step_end();
 *
 * One thread at a time.
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
    const char *device;    /**< As sh_device_open() names it; the host must be able to address its memory. */
    double budget_percent; /**< Of the file's tensors; used when `budget_bytes` is 0. */
    uint64_t budget_bytes; /**< Ceiling on device memory. Both 0: none, everything stays on the device. */
    bool learn_order; /**< Do not tell the order of the layers: the library learns it from the first step. */
};

/** Opens `directory`/model.safetensors on a device. On success the caller frees it by weights_close(). */
bool weights_open(const char *directory, const struct config *config, const struct weights_options *options,
                  struct weights **out, struct error *error);

/** NULL is allowed. */
void weights_close(struct weights *weights);

bool weights_step_begin(struct weights *weights, struct error *error);
bool weights_step_end(struct weights *weights, struct error *error);

/**
 * Copies row ids[i] of the word table to rows + i * hidden. Only the parts of the table that hold these rows
 * are loaded.
 */
bool weights_gather_words(struct weights *weights, const int32_t *ids, size_t count, float *rows,
                          struct error *error);

/** Pointers to the tensors, by enum embedding_tensor. */
bool weights_acquire_embeddings(struct weights *weights, const float *out[EMBEDDING_TENSORS],
                                struct error *error);
bool weights_release_embeddings(struct weights *weights, struct error *error);

/** Pointers to the tensors, by enum layer_tensor. */
bool weights_acquire_layer(struct weights *weights, int layer, const float *out[LAYER_TENSORS],
                           struct error *error);
bool weights_release_layer(struct weights *weights, int layer, struct error *error);

/** What was streamed so far. */
struct weights_report {
    uint64_t model_bytes;  /**< All tensors of the file. */
    uint64_t budget_bytes; /**< 0: no ceiling was asked for. */
    uint64_t peak_device_bytes;
    uint64_t copied_bytes; /**< To the device. */
    uint64_t steps;
    uint64_t hits;     /**< Acquires whose bytes were there or on their way. */
    uint64_t misses;   /**< Acquires that had to begin a load. */
    uint64_t stall_ns; /**< Time that acquires waited. */
};

bool weights_read_report(struct weights *weights, struct weights_report *out, struct error *error);

#endif
