#include "gpu/driver.h"

#include <dlfcn.h>

#include <string>

#include "support/last_error.h"
#include "support/static_program.h"

namespace SH_GPU_NAMESPACE {
namespace {

// The names of the symbols in the driver's file. The macros of the headers choose their versions.
#define SH_GPU_TEXT(name) #name
#define SH_GPU_SYMBOL(name) SH_GPU_TEXT(name)

struct Loaded {
    Driver table;
    std::string problem;  // empty if the driver works
};

std::string or_else(const char* text, const char* otherwise) { return text && *text ? text : otherwise; }

// The process may have loaded the driver already, as a file with another name or version. That file comes first,
// because a second copy would not know the process's streams.
void* open_driver(std::string* out_file, std::string* out_problem) {
    for (const int mode : {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL}) {
        for (const char* const name : api::kDriverFiles) {
            void* const file = dlopen(name, mode);
            const std::string text = or_else(dlerror(), "the file of the driver cannot be loaded");
            if (file) {
                *out_file = name;
                return file;
            }
            *out_problem = text;  // the last file has the plainest name
        }
    }
    return nullptr;
}

Loaded load() {
    Loaded loaded;
    if (support::is_static_program()) {
        loaded.problem = "the program is linked with -static, so that it cannot load the driver";
        return loaded;
    }
    // The file is never closed, because its threads and handlers outlive everything here.
    std::string name, problem;
    void* const file = open_driver(&name, &problem);
    if (!file) {
        loaded.problem = problem;
        return loaded;
    }
#define SH_GPU_LOOK_UP(member, function)                                                                         \
    loaded.table.member = reinterpret_cast<decltype(loaded.table.member)>(dlsym(file, SH_GPU_SYMBOL(function))); \
    if (!loaded.table.member && loaded.problem.empty())                                                          \
        loaded.problem = name + " is too old: it has no " + SH_GPU_SYMBOL(function);
#define SH_GPU_LOOK_UP_OPTIONAL(member, function, type) \
    loaded.table.member = reinterpret_cast<api::type*>(dlsym(file, SH_GPU_SYMBOL(function)));
    SH_GPU_ENTRY_POINTS(SH_GPU_LOOK_UP)
    SH_GPU_OPTIONAL_ENTRY_POINTS(SH_GPU_LOOK_UP_OPTIONAL)
#undef SH_GPU_LOOK_UP_OPTIONAL
#undef SH_GPU_LOOK_UP
    if (!loaded.problem.empty()) return loaded;
    const api::Result result = api::start(loaded.table);
    if (result != api::kSuccess)
        loaded.problem = name + ": " + or_else(api::error_name(loaded.table, result), "an error without a name");
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
    const std::string name = or_else(api::error_name(*driver(), result), "an error without a name");
    const std::string text = or_else(api::error_text(*driver(), result), "no text");
    api::forget_error(*driver());
    const sh_status status = result == api::kOutOfMemory     ? SH_ERROR_OUT_OF_DEVICE_MEMORY
                             : api::is_lost(result)          ? SH_ERROR_DEVICE_LOST
                             : result == api::kNotSupported  ? SH_ERROR_UNSUPPORTED
                             : result == api::kInvalidHandle ? SH_ERROR_INVALID_HANDLE
                                                             : SH_ERROR_BACKEND;
    if (text == name) return support::fail(status, "%s: %s", call, name.c_str());
    return support::fail(status, "%s: %s (%s)", call, name.c_str(), text.c_str());
}

}  // namespace SH_GPU_NAMESPACE
