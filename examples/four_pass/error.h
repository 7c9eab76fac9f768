/* The text of a failure, handed from where it happens to where it is printed. */
#ifndef FOUR_PASS_ERROR_H
#define FOUR_PASS_ERROR_H

#include <stdbool.h>

#include <stagehand/stagehand.h>

struct error {
    char text[1024];
};

/** Writes the text, cut to fit, and returns false: `return error_set(error, ...)` leaves a function. */
bool error_set(struct error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** error_set() for a refused allocation. */
bool error_out_of_memory(struct error *error);

/** Whether a call of the library succeeded; else writes its name for the error and its text after `what`. */
bool succeeded(sh_status status, const char *what, struct error *error);

#endif
