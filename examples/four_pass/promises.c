/* The promises of the library that the pipeline relies on, and whether they were kept. */
#include "promises.h"

#include <stdarg.h>
#include <stdio.h>

void promise(struct promises* promises, bool kept, const char* format, ...) {
    const size_t most = sizeof promises->list / sizeof promises->list[0];
    va_list arguments;

    if (promises->count == most) {
        promises->list[most - 1].kept = false;
        return;
    }
    struct promise* const added = &promises->list[promises->count++];
    added->kept = kept;
    va_start(arguments, format);
    vsnprintf(added->text, sizeof added->text, format, arguments);
    va_end(arguments);
}

bool promises_print(const struct promises* promises) {
    bool all = promises->count > 0;

    for (const struct promise* one = promises->list; one < promises->list + promises->count; one++) {
        printf("%s %s\n", one->kept ? "kept  " : "BROKEN", one->text);
        all = all && one->kept;
    }
    return all;
}
