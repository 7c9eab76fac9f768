/* Prints the results, for people and for programs. */
#ifndef MINILM_OUTPUT_H
#define MINILM_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "error.h"
#include "weights.h"

struct results {
    char* const* sentences;
    size_t count;
    size_t dimensions;
    const float* vectors; /**< count x dimensions, each vector of length 1: a similarity is a dot product. */
    struct weights_report streamed;
};

/** Prints a table of similarities, and the figures of the streaming. */
void output_table(const struct results* results);

/** Prints one object: sentences, embeddings, similarities, streamed. */
bool output_json(const struct results* results, struct error* error);

#endif
