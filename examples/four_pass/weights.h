/* The weights of a model on the host: their memory and their contents. */
#ifndef FOUR_PASS_WEIGHTS_H
#define FOUR_PASS_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "error.h"
#include "machine.h"

/**
 * Allocates memory for a model's weights: pinned and zeroed. In a simulation it reserves addresses only, which are
 * never read. After a success the caller calls weights_free() before the device closes.
 */
bool weights_allocate(struct machine* machine, uint64_t bytes, void** out, struct error* error);
void weights_free(struct machine* machine, void* weights, uint64_t bytes);

/** Writes a layer's weights. The contents differ for each layer (`seed`) and for each position in a layer. */
void weights_fill(void* weights, uint64_t bytes, uint64_t seed);

/** Returns true if these are the weights of that layer, to the last byte. */
bool weights_are(const void* weights, uint64_t bytes, uint64_t seed);

#endif
