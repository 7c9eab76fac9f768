/* The text of a failure. */
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

bool succeeded(sh_status status, const char* what, struct error* error) {
    char text[768] = "";

    if (status >= 0) return true;
    sh_last_error(text, sizeof text);
    return error_set(error, "%s: %s: %s", what, sh_status_string(status), text);
}
