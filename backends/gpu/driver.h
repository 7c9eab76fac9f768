// Driver: the entry points of a GPU's driver. They are looked up when the backend is first used.
#pragma once

#include <stagehand/base.h>

#include "api.h"

namespace SH_GPU_NAMESPACE {

struct Driver {
#define SH_GPU_MEMBER(member, function) decltype(&::function) member = nullptr;
#define SH_GPU_OPTIONAL_MEMBER(member, function, type) api::type* member = nullptr;
    SH_GPU_ENTRY_POINTS(SH_GPU_MEMBER)
    SH_GPU_OPTIONAL_ENTRY_POINTS(SH_GPU_OPTIONAL_MEMBER)
#undef SH_GPU_OPTIONAL_MEMBER
#undef SH_GPU_MEMBER
};

// Returns the driver of this machine, loaded and initialised once. Returns null if it cannot be used: last_error() then
// has the reason.
const Driver* driver();

// Stores the driver's name and text of a failure for last_error(), and returns the matching status. Clears the failure
// in the driver.
sh_status failed(api::Result result, const char* call);

}  // namespace SH_GPU_NAMESPACE

// Leaves the enclosing function if a call into the driver fails.
#define SH_GPU_TRY(member, ...)                                                    \
    do {                                                                           \
        const api::Result sh_gpu_result = driver()->member(__VA_ARGS__);           \
        if (sh_gpu_result != api::kSuccess) return failed(sh_gpu_result, #member); \
    } while (0)
