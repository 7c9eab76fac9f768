// The text behind sh_backend::last_error(), one for each thread, and the guard that keeps exceptions inside a backend.
#pragma once

#include <exception>
#include <new>

#include <stagehand/base.h>

namespace stagehand::support {

// Formats the calling thread's text and returns `code`, so that one statement reports a failure.
sh_status fail(sh_status code, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Returns the text, never NULL. The text is empty before the thread's first failure.
const char* last_error();

// Runs the body of a table function. No exception may cross the table.
template <class Body>
sh_status guarded(Body&& body) noexcept {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return fail(SH_ERROR_OUT_OF_HOST_MEMORY, "the process has no memory left");
    } catch (const std::exception& error) {
        return fail(SH_ERROR_INTERNAL, "%s", error.what());
    } catch (...) {
        return fail(SH_ERROR_INTERNAL, "an exception of an unknown type");
    }
}

}  // namespace stagehand::support
