/* Checks for the C programs of this folder. A failed check prints the line and the wrong value, and the program goes
 * on. */
#ifndef TESTS_BINDINGS_CHECK_H
#define TESTS_BINDINGS_CHECK_H

#include <stagehand/stagehand.h>

#include <stdio.h>
#include <string.h>

static int failed_checks;

static void check_status(sh_status got, sh_status wanted, const char* what, int line) {
    char text[512] = "";
    if (got == wanted) return;
    sh_last_error(text, sizeof text);
    fprintf(stderr, "line %d: %s: %s, not %s (%s)\n", line, what, sh_status_string(got), sh_status_string(wanted),
            text);
    ++failed_checks;
}

static void check_true(int holds, const char* what, int line) {
    if (holds) return;
    fprintf(stderr, "line %d: this does not hold: %s\n", line, what);
    ++failed_checks;
}

/* Checks that the call returns this status. */
#define GIVES(status, call) check_status((call), (status), #call, __LINE__)
#define SUCCEEDS(call) GIVES(SH_OK, call)
#define CHECK(condition) check_true((condition) != 0, #condition, __LINE__)

/* Returns a byte of the model by a formula. No two blocks and no two pages are equal. */
static inline unsigned char model_byte(unsigned block, size_t offset) {
    const uint64_t mixed = (offset + 1) * UINT64_C(0x9e3779b97f4a7c15) + block * UINT64_C(0xbf58476d1ce4e5b9);
    return (unsigned char)(mixed >> 56);
}

static inline size_t wrong_bytes(const void* memory, unsigned block, size_t bytes) {
    const unsigned char* at = (const unsigned char*)memory;
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; ++i) wrong += at[i] != model_byte(block, i);
    return wrong;
}

#endif
