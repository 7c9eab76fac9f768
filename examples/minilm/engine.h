/* The whole engine: turns sentences into vectors. */
#ifndef MINILM_ENGINE_H
#define MINILM_ENGINE_H

#include <stdbool.h>
#include <stddef.h>

#include "error.h"
#include "weights.h"

struct engine;

/**
 * Opens the model in `directory`: its JSON files, vocab.txt and model.safetensors. After a success the caller calls
 * engine_close().
 */
bool engine_open(const char* directory, const struct weights_options* options, struct engine** out,
                 struct error* error);

/** NULL is allowed. */
void engine_close(struct engine* engine);

/** Returns the number of values in a vector. */
size_t engine_dimensions(const struct engine* engine);

/** Embeds sentences (UTF-8) in steps of `batch`, at least 1. Writes count x engine_dimensions() numbers. */
bool engine_embed(struct engine* engine, const char* const* sentences, size_t count, size_t batch, float* out,
                  struct error* error);

bool engine_read_report(struct engine* engine, struct weights_report* out, struct error* error);

#endif
