/* The promises of the library that the pipeline relies on, and whether they were kept. */
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

/** Records a promise with its text. A promise beyond the end of the list is recorded as broken. */
void promise(struct promises* promises, bool kept, const char* format, ...) __attribute__((format(printf, 3, 4)));

/** Prints all promises. Returns false if one was broken. */
bool promises_print(const struct promises* promises);

#endif
