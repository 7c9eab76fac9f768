// Access to the functions that a test backend exports beside its table.
#pragma once

#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>

#include <dlfcn.h>

namespace stagehand::test {

// Returns a function of a plugin that the library has loaded from STAGEHAND_BACKEND_PATH.
template <class Function>
Function* plugin_function(const char* plugin, const char* name) {
    std::istringstream folders(std::getenv("STAGEHAND_BACKEND_PATH"));
    void* file = nullptr;
    for (std::string folder; !file && std::getline(folders, folder, ':');)
        file = dlopen((folder + "/" + plugin).c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (!file) throw std::runtime_error(std::string(plugin) + " is not loaded");
    auto* const function = reinterpret_cast<Function*>(dlsym(file, name));
    dlclose(file);  // the library keeps it
    if (!function) throw std::runtime_error(name);
    return function;
}

// The functions of the fault backend and of the capture backend.
#define FAULT(name) plugin_function<decltype(name)>("stagehand-fault.so", #name)
#define DRIVER(name) plugin_function<decltype(name)>("stagehand-capture.so", #name)

}  // namespace stagehand::test
