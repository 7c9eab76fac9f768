/* WordPiece: sentences to rows of the word table, as the model was trained. */
#ifndef MINILM_TOKENIZER_H
#define MINILM_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"

struct tokenizer;

/**
 * Reads vocab.txt: one piece a line, the line's number is its id. On success the caller frees it by
 * tokenizer_close().
 */
bool tokenizer_open(const char *vocabulary_path, struct tokenizer **out, struct error *error);

/** NULL is allowed. */
void tokenizer_close(struct tokenizer *tokenizer);

/** Pieces in the vocabulary. */
size_t tokenizer_size(const struct tokenizer *tokenizer);

/** The tokens of a sentence. */
struct tokens {
    int32_t *ids;
    size_t count;
};

/**
 * [CLS], the pieces of `text`, [SEP]; cut so that there are at most `max_tokens`, which is at least 2. Marks
 * like [MASK] in the text stand for themselves. On success the caller frees `out->ids` by free().
 */
bool tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes, size_t max_tokens,
                      struct tokens *out, struct error *error);

#endif
