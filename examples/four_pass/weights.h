/* A model's weights on the host: where they are, and what is in them. */
#ifndef FOUR_PASS_WEIGHTS_H
#define FOUR_PASS_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "error.h"
#include "machine.h"

/**
 * Memory for a model's weights: pinned, and zero; in a simulation addresses only, which nobody reads. On success weights_free()
 * frees it, before the device closes.
 */
bool weights_allocate(struct machine *machine, uint64_t bytes, void **out, struct error *error);
void weights_free(struct machine *machine, void *weights, uint64_t bytes);

/** Writes a layer's weights. No two layers (`seed`) have the same, nor two places of one. */
void weights_fill(void *weights, uint64_t bytes, uint64_t seed);

/** Whether these are the weights of that layer, to the last byte. */
bool weights_are(const void *weights, uint64_t bytes, uint64_t seed);

#endif
