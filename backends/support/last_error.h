// The text behind sh_backend::last_error(), one a thread, and the guard that keeps exceptions inside a
// backend.
#pragma once

#include <exception>
#include <new>

#include <stagehand/base.h>

namespace stagehand::support {

// Formats the calling thread's text and returns `code`, so that a failure is told in one statement.
sh_status fail(sh_status code, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Never NULL; empty before the thread's first failure.
const char* last_error();

// Runs what a member of the table does. Nothing may be thrown across the table.
template <class Body>
sh_status guarded(Body&& body) noexcept {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return fail(SH_ERROR_OUT_OF_HOST_MEMORY, "the process has no memory left");
    } catch (const std::exception& error) {
        return fail(SH_ERROR_INTERNAL, "%s", error.what());
    } catch (...) {
        return fail(SH_ERROR_INTERNAL, "an exception of unknown type");
    }
}

}  // namespace stagehand::support
