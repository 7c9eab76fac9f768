/* The text of a failure, which travels from the failing function to the place that prints it. */
#ifndef FOUR_PASS_ERROR_H
#define FOUR_PASS_ERROR_H

#include <stdbool.h>

#include <stagehand/stagehand.h>

struct error {
    char text[1024];
};

/** Writes the text, cut to fit, and returns false, so that `return error_set(error, ...)` leaves a function. */
bool error_set(struct error* error, const char* format, ...) __attribute__((format(printf, 2, 3)));

/** error_set() for a refused allocation. */
bool error_out_of_memory(struct error* error);

/** Returns true if a call of the library succeeded. Otherwise writes `what`, the name of the error and its text. */
bool succeeded(sh_status status, const char* what, struct error* error);

#endif
