// cudaMalloc() and cudaFree(), and HIP's, in front of those of the runtime: LD_PRELOAD puts this library there.
#include "runtime.h"

#include "memory_saver.h"
#include "real.h"

namespace memory_saver {

namespace {

// Numbers that both runtimes and the driver give these errors.
constexpr int kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kUnknown = 999;

struct Runtime {
    const char *malloc, *free, *get_device;
};
constexpr Runtime kCuda = {"cudaMalloc", "cudaFree", "cudaGetDevice"};
constexpr Runtime kHip = {"hipMalloc", "hipFree", "hipGetDevice"};

int malloc_of(const Runtime& runtime, void** memory, std::size_t bytes) {
    if (!is_wanted()) {
        const auto plain = reinterpret_cast<Malloc>(real_runtime_function(runtime.malloc));
        return plain ? plain(memory, bytes) : kUnknown;
    }
    return allocate_here(reinterpret_cast<GetDevice>(real_runtime_function(runtime.get_device)), memory, bytes);
}

int free_of(const Runtime& runtime, void* memory) {
    int result = 0;
    if (free_here(memory, &result)) return result;
    const auto plain = reinterpret_cast<Free>(real_runtime_function(runtime.free));
    return plain ? plain(memory) : kUnknown;
}

}  // namespace

bool is_wanted() { return !inside() && (config().interesting || wrong_variable()); }

int allocate_here(GetDevice get_device, void** memory, std::size_t bytes) {
    if (!memory) return kInvalidValue;
    *memory = nullptr;
    if (!bytes) return kSuccess;
    int device = 0;
    if (get_device)
        if (const int failed = get_device(&device)) return failed;
    const sh_status status = allocate(bytes, device, memory);
    if (status >= 0) return kSuccess;
    return status == SH_ERROR_INVALID_ARGUMENT ? kInvalidValue : kOutOfMemory;
}

bool free_here(void* memory, int* result) {
    sh_status status = SH_OK;
    if (!memory || inside() || !give_back(memory, &status)) return false;
    *result = status < 0 ? kUnknown : kSuccess;
    return true;
}

int cuda_malloc(void** memory, std::size_t bytes) { return malloc_of(kCuda, memory, bytes); }
int cuda_free(void* memory) { return free_of(kCuda, memory); }

int hip_malloc(void** memory, std::size_t bytes) {
    set_backend("hip");
    return malloc_of(kHip, memory, bytes);
}
int hip_free(void* memory) { return free_of(kHip, memory); }

}  // namespace memory_saver

MEMORY_SAVER_HOOK int cudaMalloc(void** memory, std::size_t bytes) { return memory_saver::cuda_malloc(memory, bytes); }
MEMORY_SAVER_HOOK int cudaFree(void* memory) { return memory_saver::cuda_free(memory); }
MEMORY_SAVER_HOOK int hipMalloc(void** memory, std::size_t bytes) { return memory_saver::hip_malloc(memory, bytes); }
MEMORY_SAVER_HOOK int hipFree(void* memory) { return memory_saver::hip_free(memory); }
