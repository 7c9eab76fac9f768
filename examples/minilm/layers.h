/*
 * The arithmetic of a BERT layer, on the host, in float. It uses one thread and a fixed order of operations. So the
 * same weights and tokens give the same bits, wherever the weights are in memory.
 */
#ifndef MINILM_LAYERS_H
#define MINILM_LAYERS_H

#include <stdbool.h>
#include <stddef.h>

#include "blocks.h"
#include "config.h"
#include "error.h"

/** Memory for the intermediate values of a layer, for sentences of up to config.max_tokens. */
struct scratch {
    float* query; /**< tokens x hidden */
    float* key;
    float* value;
    float* mixed;
    float* scores; /**< tokens x tokens, of one head */
    float* middle; /**< tokens x intermediate */
};

/** After a success the caller calls scratch_free(). Sets the number of BLAS threads to one. */
bool scratch_allocate(const struct config* config, struct scratch* out, struct error* error);

/** A struct of zeros is allowed. */
void scratch_free(struct scratch* scratch);

/** Normalises each row to mean 0 and variance 1, then scales and shifts it. Works in place. */
void layer_norm(const struct config* config, const float* weight, const float* bias, float* rows, size_t count);

/** Turns the vectors of one sentence's tokens into the vectors after the layer. Works in place. */
void layer_forward(const struct config* config, const float* const weights[LAYER_TENSORS], struct scratch* scratch,
                   float* rows, size_t tokens);

#endif
