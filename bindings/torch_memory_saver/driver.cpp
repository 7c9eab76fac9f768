// cuMemAlloc() and cuMemFree() in front of those of CUDA's driver, and the ways in which programs look them up.
#include <cstring>

#include "memory_saver.h"
#include "real.h"
#include "runtime.h"

namespace memory_saver {

namespace {

constexpr int kNotInitialized = 3;

using DriverAlloc = int (*)(uint64_t*, std::size_t);
using DriverFree = int (*)(uint64_t);
using DriverLookUp = int (*)(const char*, void**, int, uint64_t);
using DriverLookUpWithStatus = int (*)(const char*, void**, int, uint64_t, int*);

template <class Function>
Function driver(const char* name) {
    return reinterpret_cast<Function>(real_driver_function(name));
}

template <class Function>
void* pointer_to(Function* function) {
    return reinterpret_cast<void*>(function);
}

// What this library has for a name and a version that the driver is asked for. The names have no suffix there.
void* replacement_of_version(const char* symbol, int version) {
    if (!std::strcmp(symbol, "cuMemAlloc") && version >= 3020) return pointer_to(driver_alloc);
    if (!std::strcmp(symbol, "cuMemFree") && version >= 3020) return pointer_to(driver_free);
    if (std::strcmp(symbol, "cuGetProcAddress")) return nullptr;
    return version >= 12000 ? pointer_to(driver_look_up_with_status) : pointer_to(driver_look_up);
}

void replace(const char* symbol, int version, int result, void** function) {
    if (result || !symbol || !function || !*function || inside() || !takes_driver()) return;
    if (void* const ours = replacement_of_version(symbol, version)) *function = ours;
}

}  // namespace

int driver_alloc(uint64_t* address, std::size_t bytes) {
    const auto plain = driver<DriverAlloc>("cuMemAlloc_v2");
    if (!plain) return kNotInitialized;
    // The driver itself refuses 0 bytes.
    if (!takes_driver() || !is_wanted() || !address || !bytes) return plain(address, bytes);
    void* memory = nullptr;
    const int result = allocate_here(driver<GetDevice>("cuCtxGetDevice"), &memory, bytes);
    *address = uint64_t(reinterpret_cast<uintptr_t>(memory));
    return result;
}

int driver_free(uint64_t address) {
    int result = 0;
    if (free_here(reinterpret_cast<void*>(uintptr_t(address)), &result)) return result;
    const auto plain = driver<DriverFree>("cuMemFree_v2");
    return plain ? plain(address) : kNotInitialized;
}

int driver_look_up(const char* symbol, void** function, int version, uint64_t flags) {
    const auto plain = driver<DriverLookUp>("cuGetProcAddress");
    if (!plain) return kNotInitialized;
    const int result = plain(symbol, function, version, flags);
    replace(symbol, version, result, function);
    return result;
}

int driver_look_up_with_status(const char* symbol, void** function, int version, uint64_t flags, int* status) {
    const auto plain = driver<DriverLookUpWithStatus>("cuGetProcAddress_v2");
    if (!plain) return kNotInitialized;
    const int result = plain(symbol, function, version, flags, status);
    replace(symbol, version, result, function);
    return result;
}

void* replacement_of(const char* name) {
    static const struct {
        const char* name;
        void* function;
    } all[] = {
        {"cudaMalloc", pointer_to(cuda_malloc)},
        {"cudaFree", pointer_to(cuda_free)},
        {"hipMalloc", pointer_to(hip_malloc)},
        {"hipFree", pointer_to(hip_free)},
        {"cuMemAlloc_v2", pointer_to(driver_alloc)},
        {"cuMemFree_v2", pointer_to(driver_free)},
        {"cuGetProcAddress", pointer_to(driver_look_up)},
        {"cuGetProcAddress_v2", pointer_to(driver_look_up_with_status)},
    };
    if (std::strncmp(name, "cu", 2) && std::strncmp(name, "hip", 3)) return nullptr;
    for (const auto& one : all)
        if (!std::strcmp(one.name, name)) return one.function;
    return nullptr;
}

}  // namespace memory_saver

MEMORY_SAVER_HOOK int cuMemAlloc_v2(uint64_t* address, std::size_t bytes) {
    return memory_saver::driver_alloc(address, bytes);
}
MEMORY_SAVER_HOOK int cuMemFree_v2(uint64_t address) { return memory_saver::driver_free(address); }
MEMORY_SAVER_HOOK int cuGetProcAddress(const char* symbol, void** function, int version, uint64_t flags) {
    return memory_saver::driver_look_up(symbol, function, version, flags);
}
MEMORY_SAVER_HOOK int cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags,
                                          int* status) {
    return memory_saver::driver_look_up_with_status(symbol, function, version, flags, status);
}
