// no_throw: runs work and turns its exceptions into a Status. For callers that must clean up before they go on, and for
// the outermost function of a thread.
#pragma once

#include <exception>
#include <new>

#include "base/status.h"

namespace stagehand {

template <class Work>
Status no_throw(Work&& work) noexcept {
    try {
        return work();
    } catch (const std::bad_alloc&) {
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY);  // without a text, which would need memory
    } catch (const std::exception& error) {
        return Status(SH_ERROR_INTERNAL, error.what());
    } catch (...) {
        return Status(SH_ERROR_INTERNAL, "an unknown C++ exception");
    }
}

}  // namespace stagehand
