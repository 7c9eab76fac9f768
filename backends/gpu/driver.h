// Driver: the entry points of a GPU's driver, looked up when a backend is first asked for.
#pragma once

#include <stagehand/base.h>

#include "api.h"

namespace stagehand::gpu {

struct Driver {
#define SH_GPU_MEMBER(member, function) decltype(&::function) member = nullptr;
#define SH_GPU_OPTIONAL_MEMBER(member, function, type) api::type* member = nullptr;
    SH_GPU_ENTRY_POINTS(SH_GPU_MEMBER)
    SH_GPU_OPTIONAL_ENTRY_POINTS(SH_GPU_OPTIONAL_MEMBER)
#undef SH_GPU_OPTIONAL_MEMBER
#undef SH_GPU_MEMBER
};

// The driver of this machine, loaded and initialised once; null when it cannot be had: last_error() then says why.
const Driver* driver();

// Keeps the driver's name and text of a failure for last_error() and gives the status that stands for it. Nothing of it stays behind in
// the driver.
sh_status failed(api::Result result, const char* call);

}  // namespace stagehand::gpu

// Leaves the enclosing function when a call into the driver fails.
#define SH_GPU_TRY(member, ...)                                                                                    \
    do {                                                                                                           \
        const api::Result sh_gpu_result = driver()->member(__VA_ARGS__);                                           \
        if (sh_gpu_result != api::kSuccess) return failed(sh_gpu_result, #member);                                 \
    } while (0)
