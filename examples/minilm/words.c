/* BERT's basic tokenization. */
#include "words.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

enum { REPLACEMENT_CHARACTER = 0xfffd };

static bool is_space(int32_t c) {
    switch (utf8proc_category(c)) {
        case UTF8PROC_CATEGORY_ZS:
        case UTF8PROC_CATEGORY_ZL:
        case UTF8PROC_CATEGORY_ZP:
            return true;
        default:
            return c == '\t' || c == '\n' || c == '\r';
    }
}

/** Returns true for control, format and private characters, which are dropped. */
static bool is_dropped(int32_t c) {
    switch (utf8proc_category(c)) {
        case UTF8PROC_CATEGORY_CC:
        case UTF8PROC_CATEGORY_CF:
        case UTF8PROC_CATEGORY_CO:
        case UTF8PROC_CATEGORY_CS:
            return !is_space(c);
        default:
            return c == REPLACEMENT_CHARACTER;
    }
}

static bool is_accent(int32_t c) { return utf8proc_category(c) == UTF8PROC_CATEGORY_MN; }

static bool is_punctuation(int32_t c) {
    if (c < 0x80)
        return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
    switch (utf8proc_category(c)) {
        case UTF8PROC_CATEGORY_PC:
        case UTF8PROC_CATEGORY_PD:
        case UTF8PROC_CATEGORY_PS:
        case UTF8PROC_CATEGORY_PE:
        case UTF8PROC_CATEGORY_PI:
        case UTF8PROC_CATEGORY_PF:
        case UTF8PROC_CATEGORY_PO:
            return true;
        default:
            return false;
    }
}

/**
 * Returns true for ideographs, which are written without spaces. The ranges, 0x2b920 too, are the same as in the
 * tokenizer of the model.
 */
static bool is_ideograph(int32_t c) {
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
           (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

/**
 * Drops characters that are not text, turns every space into ' ', and puts spaces around ideographs. Ideographs must
 * be found before they decompose.
 */
static char* clean(const char* text, size_t bytes, size_t* out_bytes) {
    /* Only an ideograph grows, by two spaces. It has at least three bytes. */
    unsigned char* cleaned = malloc(bytes + 2 * (bytes / 3) + LONGEST_UTF8_BYTES + 1);
    size_t length = 0;

    for (size_t at = 0; cleaned != NULL && at < bytes;) {
        utf8proc_int32_t c = 0;
        utf8proc_ssize_t used =
            utf8proc_iterate((const utf8proc_uint8_t*)text + at, (utf8proc_ssize_t)(bytes - at), &c);
        at += used < 1 ? 1 : (size_t)used;
        if (used < 1 || is_dropped(c)) continue;
        if (is_ideograph(c)) cleaned[length++] = ' ';
        length += (size_t)utf8proc_encode_char(is_space(c) ? ' ' : c, cleaned + length);
        if (is_ideograph(c)) cleaned[length++] = ' ';
    }
    *out_bytes = length;
    return (char*)cleaned;
}

/** Computes the canonical decomposition (NFD) as code points. */
static bool decompose(const char* text, size_t bytes, int32_t** out, size_t* out_count, struct error* error) {
    const utf8proc_uint8_t* utf8 = (const utf8proc_uint8_t*)text;
    utf8proc_ssize_t count = utf8proc_decompose(utf8, (utf8proc_ssize_t)bytes, NULL, 0, UTF8PROC_DECOMPOSE);

    if (count < 0) return error_set(error, "a sentence cannot be decomposed: %s", utf8proc_errmsg(count));
    int32_t* points = malloc(((size_t)count + 1) * sizeof *points);
    if (points == NULL) return error_out_of_memory(error);
    count = utf8proc_decompose(utf8, (utf8proc_ssize_t)bytes, points, count, UTF8PROC_DECOMPOSE);
    *out = points;
    *out_count = (size_t)count;
    return true;
}

/** Cuts at spaces and around punctuation. Drops accents and changes to lower case in place. */
static void split(struct words* words, size_t count) {
    size_t length = 0;
    size_t begin = 0;

    for (size_t i = 0; i < count; i++) {
        const int32_t c = words->code_points[i];
        if (is_accent(c)) continue;
        if ((is_space(c) || is_punctuation(c)) && length > begin) begin = words->ends[words->count++] = length;
        if (is_space(c)) continue;
        words->code_points[length++] = utf8proc_tolower(c);
        if (is_punctuation(c)) begin = words->ends[words->count++] = length;
    }
    if (length > begin) words->ends[words->count++] = length;
}

bool words_split(const char* text, size_t bytes, struct words* out, struct error* error) {
    struct words words = {0};
    size_t cleaned_bytes = 0;
    size_t count = 0;
    char* cleaned = clean(text, bytes, &cleaned_bytes);
    bool ok = cleaned != NULL ? decompose(cleaned, cleaned_bytes, &words.code_points, &count, error)
                              : error_out_of_memory(error);

    free(cleaned);
    if (!ok) return false;
    words.ends = malloc((count + 1) * sizeof *words.ends);
    if (words.ends == NULL) {
        words_free(&words);
        return error_out_of_memory(error);
    }
    split(&words, count);
    *out = words;
    return true;
}

void words_free(struct words* words) {
    free(words->code_points);
    free(words->ends);
    *words = (struct words){0};
}
