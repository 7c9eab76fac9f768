/*
 * BERT's basic tokenization: text to lower-case words without accents; each punctuation mark and ideograph
 * is a word of its own.
 */
#ifndef MINILM_WORDS_H
#define MINILM_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"

/** Code points of all words, back to back; word i is code_points[ends[i - 1]] up to code_points[ends[i]]. */
struct words {
    int32_t *code_points;
    size_t *ends;
    size_t count;
};

/** Splits UTF-8; bytes that are not UTF-8 are dropped. On success words_free() frees it. */
bool words_split(const char *text, size_t bytes, struct words *out, struct error *error);

/** Frees; a struct of zeros is allowed. */
void words_free(struct words *words);

#endif
