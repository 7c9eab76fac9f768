/* The text of a failure, handed from where it happens to where it is printed. */
#ifndef MINILM_ERROR_H
#define MINILM_ERROR_H

#include <stdbool.h>

struct error {
    char text[1024];
};

/**
 * Writes the text, cut to fit, and returns false: `return error_set(error, ...)` leaves a function that has
 * failed.
 */
bool error_set(struct error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** error_set() for a refused allocation. */
bool error_out_of_memory(struct error *error);

#endif
