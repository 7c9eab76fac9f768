#include "support/last_error.h"

#include <cstdarg>

#include "base/plain_format.h"

namespace stagehand::support {
namespace {

// An array and not a string: an array needs no allocation if memory is short, and no destructor when the thread ends.
thread_local char text[1024];

}  // namespace

sh_status fail(sh_status code, const char* format, ...) {
    char line[sizeof text];  // an argument may be the current text
    va_list arguments;
    va_start(arguments, format);
    vplain_format(line, sizeof line, format, arguments);
    va_end(arguments);
    plain_format(text, sizeof text, "%s", line);
    return code;
}

const char* last_error() { return text; }

}  // namespace stagehand::support
