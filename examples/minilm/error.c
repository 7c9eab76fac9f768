/* The text of a failure, which travels from the failing function to the place that prints it. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

bool error_set(struct error* error, const char* format, ...) {
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return false;
}

bool error_out_of_memory(struct error* error) { return error_set(error, "out of memory"); }
