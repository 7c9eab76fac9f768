/* WordPiece: turns sentences into rows of the word table. */
#include "tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "words.h"

enum { LONGEST_WORD = 100, CONTINUATION_BYTES = 2 };

/** The pieces that are recognised in the original text, before it is split and changed to lower case. */
enum mark { MARK_UNKNOWN, MARK_CLASSIFY, MARK_SEPARATE, MARK_PAD, MARK_MASK, MARK_COUNT };
static const char* const mark_texts[MARK_COUNT] = {"[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"};

struct piece {
    const char* text; /**< In tokenizer.file. */
    int32_t id;
};

struct tokenizer {
    char* file;
    struct piece* pieces; /**< Sorted by text. */
    size_t count;
    int32_t marks[MARK_COUNT];
};

static int compare_pieces(const void* a, const void* b) {
    return strcmp(((const struct piece*)a)->text, ((const struct piece*)b)->text);
}

/** Returns the id of a piece, or -1. */
static int32_t find_piece(const struct tokenizer* tokenizer, const char* text) {
    const struct piece key = {.text = text};
    const struct piece* found = bsearch(&key, tokenizer->pieces, tokenizer->count, sizeof key, compare_pieces);

    return found == NULL ? -1 : found->id;
}

static bool read_file(const char* path, char** out, struct error* error) {
    FILE* file = fopen(path, "rb");
    size_t bytes = 0;
    long end = -1;
    char* text = NULL;

    if (file != NULL && fseek(file, 0, SEEK_END) == 0) end = ftell(file);
    if (end >= 0 && fseek(file, 0, SEEK_SET) == 0) text = malloc((size_t)end + 1);
    if (text != NULL) bytes = fread(text, 1, (size_t)end, file);
    bool ok = text != NULL && !ferror(file);
    if (!ok) error_set(error, "%s: %s", path, strerror(errno));
    if (file != NULL) fclose(file);
    if (ok) {
        text[bytes] = '\0';
        *out = text;
        return true;
    }
    free(text);
    return false;
}

static bool read_pieces(struct tokenizer* tokenizer, const char* path, struct error* error) {
    size_t lines = 1;

    if (!read_file(path, &tokenizer->file, error)) return false;
    for (const char* c = tokenizer->file; *c != '\0'; c++) lines += *c == '\n';
    tokenizer->pieces = malloc(lines * sizeof *tokenizer->pieces);
    if (tokenizer->pieces == NULL) return error_out_of_memory(error);
    for (char* line = tokenizer->file; *line != '\0';) {
        char* end = line + strcspn(line, "\n");
        const bool last = *end == '\0';
        *end = '\0';
        if (end > line && end[-1] == '\r') end[-1] = '\0';
        tokenizer->pieces[tokenizer->count] = (struct piece){line, (int32_t)tokenizer->count};
        tokenizer->count++;
        line = last ? end : end + 1;
    }
    qsort(tokenizer->pieces, tokenizer->count, sizeof *tokenizer->pieces, compare_pieces);
    for (int mark = 0; mark < MARK_COUNT; mark++) {
        tokenizer->marks[mark] = find_piece(tokenizer, mark_texts[mark]);
        if (tokenizer->marks[mark] < 0) return error_set(error, "%s: no line %s", path, mark_texts[mark]);
    }
    return true;
}

bool tokenizer_open(const char* vocabulary_path, struct tokenizer** out, struct error* error) {
    struct tokenizer* tokenizer = calloc(1, sizeof *tokenizer);

    if (tokenizer == NULL) return error_out_of_memory(error);
    if (!read_pieces(tokenizer, vocabulary_path, error)) {
        tokenizer_close(tokenizer);
        return false;
    }
    *out = tokenizer;
    return true;
}

void tokenizer_close(struct tokenizer* tokenizer) {
    if (tokenizer == NULL) return;
    free(tokenizer->pieces);
    free(tokenizer->file);
    free(tokenizer);
}

size_t tokenizer_size(const struct tokenizer* tokenizer) { return tokenizer->count; }

/** Appends an id, unless the sentence already has `limit` tokens. The array has room for `limit`. */
static void append(struct tokens* tokens, size_t limit, int32_t id) {
    if (tokens->count < limit) tokens->ids[tokens->count++] = id;
}

/**
 * Cuts a word into the longest pieces in the vocabulary, from the left. A word that is too long or cannot be cut
 * becomes one [UNK].
 */
static void append_word(const struct tokenizer* tokenizer, const int32_t* word, size_t length, size_t limit,
                        struct tokens* tokens) {
    char text[CONTINUATION_BYTES + LONGEST_WORD * LONGEST_UTF8_BYTES + 1] = "##";
    size_t ends[LONGEST_WORD + 1] = {CONTINUATION_BYTES}; /* Where each character ends in `text`. */
    const size_t before = tokens->count;

    if (length > LONGEST_WORD) {
        append(tokens, limit, tokenizer->marks[MARK_UNKNOWN]);
        return;
    }
    for (size_t i = 0; i < length; i++)
        ends[i + 1] = ends[i] + (size_t)utf8proc_encode_char(word[i], (utf8proc_uint8_t*)text + ends[i]);
    for (size_t begin = 0; begin < length;) {
        size_t end = length;
        int32_t id = -1;
        char* piece = text + ends[begin];
        if (begin > 0) {
            piece -= CONTINUATION_BYTES;
            memcpy(piece, "##", CONTINUATION_BYTES);
        }
        for (; end > begin; end--) {
            const char cut = text[ends[end]];
            text[ends[end]] = '\0';
            id = find_piece(tokenizer, piece);
            text[ends[end]] = cut;
            if (id >= 0) break;
        }
        if (id < 0) {
            tokens->count = before;
            append(tokens, limit, tokenizer->marks[MARK_UNKNOWN]);
            return;
        }
        append(tokens, limit, id);
        begin = end;
    }
}

static bool append_text(const struct tokenizer* tokenizer, const char* text, size_t bytes, size_t limit,
                        struct tokens* tokens, struct error* error) {
    struct words words = {0};

    if (!words_split(text, bytes, &words, error)) return false;
    for (size_t i = 0; i < words.count; i++) {
        const size_t begin = i == 0 ? 0 : words.ends[i - 1];
        append_word(tokenizer, words.code_points + begin, words.ends[i] - begin, limit, tokens);
    }
    words_free(&words);
    return true;
}

/** Returns the mark at the beginning of the text, or MARK_COUNT. */
static int find_mark(const char* text, size_t bytes) {
    int mark = 0;

    while (mark < MARK_COUNT &&
           (bytes < strlen(mark_texts[mark]) || memcmp(text, mark_texts[mark], strlen(mark_texts[mark])) != 0))
        mark++;
    return mark;
}

bool tokenizer_encode(const struct tokenizer* tokenizer, const char* text, size_t bytes, size_t max_tokens,
                      struct tokens* out, struct error* error) {
    struct tokens tokens = {.ids = malloc(max_tokens * sizeof *tokens.ids)};
    const size_t limit = max_tokens - 1; /* [SEP] has the last place. */
    size_t begin = 0;

    if (tokens.ids == NULL) return error_out_of_memory(error);
    append(&tokens, limit, tokenizer->marks[MARK_CLASSIFY]);
    for (size_t at = 0; at <= bytes; at++) {
        const int mark = find_mark(text + at, bytes - at);
        if (mark == MARK_COUNT && at < bytes) continue;
        if (!append_text(tokenizer, text + begin, at - begin, limit, &tokens, error)) {
            free(tokens.ids);
            return false;
        }
        if (mark < MARK_COUNT) {
            append(&tokens, limit, tokenizer->marks[mark]);
            at += strlen(mark_texts[mark]) - 1;
        }
        begin = at + 1;
    }
    append(&tokens, max_tokens, tokenizer->marks[MARK_SEPARATE]);
    *out = tokens;
    return true;
}
