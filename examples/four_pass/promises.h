/* What the pipeline counts on, and whether it was so. */
#ifndef FOUR_PASS_PROMISES_H
#define FOUR_PASS_PROMISES_H

#include <stdbool.h>
#include <stddef.h>

struct promise {
    bool kept;
    char text[160];
};

struct promises {
    struct promise list[16];
    size_t count;
};

/** Notes one, with what it says; those beyond the list's end are noted as broken. */
void promise(struct promises *promises, bool kept, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/** Prints all of them; false if one was broken. */
bool promises_print(const struct promises *promises);

#endif
