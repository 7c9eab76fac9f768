// cudaMalloc() and cudaFree(), and HIP's, in front of those of the runtime: LD_PRELOAD puts this library there.
#include <dlfcn.h>

#include "memory_saver.h"

namespace {

// Numbers that both runtimes give these errors.
constexpr int kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kUnknown = 999;

using GetDevice = int (*)(int*);
using Malloc = int (*)(void**, std::size_t);
using Free = int (*)(void*);

template <class Function>
Function next(const char* name) {
    return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

int allocate(GetDevice get_device, Malloc plain, void** memory, std::size_t bytes) {
    if (!memory_saver::config().interesting) return plain ? plain(memory, bytes) : kUnknown;
    if (!memory) return kInvalidValue;
    *memory = nullptr;
    if (!bytes) return kSuccess;
    int device = 0;
    if (get_device && get_device(&device) != kSuccess) return kUnknown;
    *memory = memory_saver::allocate(bytes, device);
    return *memory ? kSuccess : kOutOfMemory;
}

int give_back(Free plain, void* memory) {
    sh_status status = SH_OK;
    if (memory && memory_saver::give_back(memory, &status)) return status < 0 ? kUnknown : kSuccess;
    return plain ? plain(memory) : kUnknown;
}

}  // namespace

MEMORY_SAVER_HOOK int cudaMalloc(void** memory, std::size_t bytes) {
    static const GetDevice get_device = next<GetDevice>("cudaGetDevice");
    static const Malloc plain = next<Malloc>("cudaMalloc");
    return allocate(get_device, plain, memory, bytes);
}

MEMORY_SAVER_HOOK int cudaFree(void* memory) {
    static const Free plain = next<Free>("cudaFree");
    return give_back(plain, memory);
}

MEMORY_SAVER_HOOK int hipMalloc(void** memory, std::size_t bytes) {
    static const GetDevice get_device = (memory_saver::set_backend("hip"), next<GetDevice>("hipGetDevice"));
    static const Malloc plain = next<Malloc>("hipMalloc");
    return allocate(get_device, plain, memory, bytes);
}

MEMORY_SAVER_HOOK int hipFree(void* memory) {
    static const Free plain = next<Free>("hipFree");
    return give_back(plain, memory);
}
