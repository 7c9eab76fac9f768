// Tells whether the process can load shared objects. A program that was linked with -static has no dynamic linker: its
// dlopen() starts a second C library beside the program's own, and the first call into a driver then crashes.
#pragma once

#include <link.h>

namespace stagehand::support {

inline bool is_static_program() {
    const auto first_object = [](dl_phdr_info* program, size_t, void* result) {
        bool& is_static = *static_cast<bool*>(result);
        for (int i = 0; i < program->dlpi_phnum; ++i) is_static &= program->dlpi_phdr[i].p_type != PT_INTERP;
        return 1;  // the program itself comes first
    };
    bool is_static = true;
    dl_iterate_phdr(first_object, &is_static);
    return is_static;
}

}  // namespace stagehand::support
