// The functions of CUDA and HIP that this library stands in front of, and how it finds them.
#pragma once

#include <cstddef>

namespace memory_saver {

using Malloc = int (*)(void**, std::size_t);
using Free = int (*)(void*);
using GetDevice = int (*)(int*);

// A function of CUDA's or HIP's runtime. nullptr: the program has not loaded it.
void* real_runtime_function(const char* name);
// A function of CUDA's driver. nullptr: the program has not loaded it.
void* real_driver_function(const char* name);

template <class Function>
Function real_runtime(const char* cuda, const char* hip) {
    void* const found = real_runtime_function(cuda);
    return reinterpret_cast<Function>(found ? found : real_runtime_function(hip));
}

// What this library has in the place of a function, for programs that look it up. nullptr: nothing.
void* replacement_of(const char* name);

}  // namespace memory_saver
