#include "gpu/driver.h"

#include <dlfcn.h>

#include <string>

#include "support/last_error.h"

namespace stagehand::gpu {
namespace {

// The names in the driver's file: after the headers' macros, which choose versions.
#define SH_GPU_TEXT(name) #name
#define SH_GPU_SYMBOL(name) SH_GPU_TEXT(name)

struct Loaded {
    Driver table;
    std::string problem;   // empty: it works
};

Loaded load() {
    Loaded loaded;
    // Never closed: its threads and handlers outlive everything here.
    void* const file = dlopen(api::kDriverFile, RTLD_NOW | RTLD_LOCAL);
    if (!file) {
        const char* text = dlerror();
        loaded.problem = text ? text : "the driver's file cannot be loaded";
        return loaded;
    }
#define SH_GPU_LOOK_UP(member, function)                                                              \
    loaded.table.member = reinterpret_cast<decltype(loaded.table.member)>(dlsym(file, SH_GPU_SYMBOL(function))); \
    if (!loaded.table.member && loaded.problem.empty())                                               \
        loaded.problem = std::string(api::kDriverFile) + " is too old: it has no " + SH_GPU_SYMBOL(function);
    SH_GPU_ENTRY_POINTS(SH_GPU_LOOK_UP)
#undef SH_GPU_LOOK_UP
    if (!loaded.problem.empty()) return loaded;
    const api::Result result = loaded.table.init(0);
    if (result == api::kSuccess) return loaded;
    const char* name = nullptr;
    loaded.table.error_name(result, &name);
    loaded.problem = std::string(api::kDriverFile) + ": " + (name ? name : "an error without a name");
    return loaded;
}

const Loaded& loaded() {
    static const Loaded* const once = new Loaded(load());
    return *once;
}

}  // namespace

const Driver* driver() {
    if (loaded().problem.empty()) return &loaded().table;
    support::fail(SH_ERROR_BACKEND_UNAVAILABLE, "%s", loaded().problem.c_str());
    return nullptr;
}

sh_status failed(api::Result result, const char* call) {
    const char *name = nullptr, *text = nullptr;
    driver()->error_name(result, &name);
    driver()->error_text(result, &text);
    const sh_status status = result == api::kOutOfMemory ? SH_ERROR_OUT_OF_DEVICE_MEMORY
                             : api::is_lost(result)      ? SH_ERROR_DEVICE_LOST
                                                         : SH_ERROR_BACKEND;
    return support::fail(status, "%s: %s (%s)", call, name ? name : "an error without a name", text ? text : "no text");
}

}  // namespace stagehand::gpu
