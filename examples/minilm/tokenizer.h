/* WordPiece: turns sentences into rows of the word table, in the same way as in the training of the model. */
#ifndef MINILM_TOKENIZER_H
#define MINILM_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"

struct tokenizer;

/**
 * Reads vocab.txt: one piece per line, and the number of the line is the id of the piece. After a success the caller
 * calls tokenizer_close().
 */
bool tokenizer_open(const char* vocabulary_path, struct tokenizer** out, struct error* error);

/** NULL is allowed. */
void tokenizer_close(struct tokenizer* tokenizer);

/** Returns the number of pieces in the vocabulary. */
size_t tokenizer_size(const struct tokenizer* tokenizer);

/** The tokens of a sentence. */
struct tokens {
    int32_t* ids;
    size_t count;
};

/**
 * Returns [CLS], the pieces of `text` and [SEP], cut to at most `max_tokens`, which is at least 2. A mark like
 * [MASK] in the text becomes the token of that mark. After a success the caller frees `out->ids` by free().
 */
bool tokenizer_encode(const struct tokenizer* tokenizer, const char* text, size_t bytes, size_t max_tokens,
                      struct tokens* out, struct error* error);

#endif
