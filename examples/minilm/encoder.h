/* The encoder: turns the tokens of each sentence into one vector of length 1. */
#ifndef MINILM_ENCODER_H
#define MINILM_ENCODER_H

#include <stdbool.h>
#include <stddef.h>

#include "config.h"
#include "error.h"
#include "tokenizer.h"
#include "weights.h"

struct encoder;

/** Keeps `weights`, which the caller closes after the encoder. After a success the caller calls encoder_close(). */
bool encoder_open(const struct config* config, struct weights* weights, struct encoder** out, struct error* error);

/** NULL is allowed. */
void encoder_close(struct encoder* encoder);

/**
 * Embeds `count` sentences in one step. Each layer is acquired once and used for all sentences, one after the other
 * and without padding. So the vector of a sentence does not depend on its neighbours. Writes count x config.hidden
 * numbers.
 */
bool encoder_embed(struct encoder* encoder, const struct tokens* sentences, size_t count, float* out,
                   struct error* error);

#endif
