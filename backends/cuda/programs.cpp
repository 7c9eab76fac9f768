#include "programs.h"

namespace SH_GPU_NAMESPACE {

// The driver translates the programs, so that this takes a moment.
sh_status load(Device& device, Programs& programs, const char* source, const char* const (&names)[kFormats]) {
    const std::lock_guard lock(device.programs_mutex);
    if (programs.module) return SH_OK;
    CUmodule module = nullptr;
    SH_GPU_TRY(module_load, &module, source);
    for (size_t i = 0; i < kFormats; i++) {
        CUfunction function = nullptr;
        const api::Result result = driver()->module_function(&function, module, names[i]);
        if (result != api::kSuccess) {
            driver()->module_unload(module);
            return failed(result, "loading the programs that pack and unpack elements");
        }
        programs.functions[i] = function;
    }
    programs.module = module;
    return SH_OK;
}

void unload(Programs& programs) {
    if (programs.module) driver()->module_unload(static_cast<CUmodule>(programs.module));
    programs.module = nullptr;
}

}  // namespace SH_GPU_NAMESPACE
