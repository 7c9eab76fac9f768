/* The text of a failure, which travels from the failing function to the place that prints it. */
#ifndef MINILM_ERROR_H
#define MINILM_ERROR_H

#include <stdbool.h>

struct error {
    char text[1024];
};

/** Writes the text, cut to fit, and returns false, so that `return error_set(error, ...)` leaves a function. */
bool error_set(struct error* error, const char* format, ...) __attribute__((format(printf, 2, 3)));

/** error_set() for a refused allocation. */
bool error_out_of_memory(struct error* error);

#endif
