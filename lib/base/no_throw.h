// no_throw: work whose exceptions become a Status, where the caller has something to put in order before it goes on, and at the root of
// threads.
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
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY);   // without a text, which would take memory
    } catch (...) {
        return Status(SH_ERROR_INTERNAL);
    }
}

}  // namespace stagehand
