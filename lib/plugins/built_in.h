// The backends that are compiled into the library.
#pragma once

#include <span>

#include <stagehand/backend.h>

namespace stagehand::plugins {

struct BuiltIn {
    const char* name;
    sh_backend_query_fn query;
};

// Returns host and sim. In the static library also the backends for GPUs whose headers the build had.
std::span<const BuiltIn> built_in_backends();

}  // namespace stagehand::plugins
