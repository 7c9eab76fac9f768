/*
 * BERT's basic tokenization: splits text into lower-case words without accents. Each punctuation mark and each
 * ideograph is a word of its own.
 */
#ifndef MINILM_WORDS_H
#define MINILM_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"

/** The most bytes of a code point. */
enum { LONGEST_UTF8_BYTES = 4 };

/**
 * The code points of all words, one word after the other. Word i is code_points[ends[i - 1]] up to
 * code_points[ends[i]].
 */
struct words {
    int32_t* code_points;
    size_t* ends;
    size_t count;
};

/** Splits UTF-8 text. Bytes that are not UTF-8 are dropped. After a success the caller calls words_free(). */
bool words_split(const char* text, size_t bytes, struct words* out, struct error* error);

/** Frees the words. A struct of zeros is allowed. */
void words_free(struct words* words);

#endif
