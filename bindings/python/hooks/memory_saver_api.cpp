// The functions of torch_memory_saver's library that Python calls, by their names there.
#include <dlfcn.h>
#include <sys/types.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "memory_saver.h"

namespace {

std::atomic<bool> retain_cpu_backup{false};

// CUDA's own functions, for memory outside of regions. In this process they are there, because PyTorch has loaded them.
using Malloc = int (*)(void**, std::size_t);
using Free = int (*)(void*);

template <class Function>
Function runtime_function(const char* cuda, const char* hip) {
    void* const found = dlsym(RTLD_DEFAULT, cuda);
    return reinterpret_cast<Function>(found ? found : dlsym(RTLD_DEFAULT, hip));
}

template <std::size_t N>
void copy(char (&to)[N], const char* from) {
    std::snprintf(to, N, "%s", from ? from : "");
}

}  // namespace

using memory_saver::config;

MEMORY_SAVER_HOOK void tms_set_interesting_region(bool on) { config().interesting = on; }
MEMORY_SAVER_HOOK bool tms_get_interesting_region() { return config().interesting; }
MEMORY_SAVER_HOOK void tms_set_current_tag(const char* tag) { copy(config().tag, tag); }
MEMORY_SAVER_HOOK const char* tms_get_current_tag() { return config().tag; }
MEMORY_SAVER_HOOK void tms_set_enable_cpu_backup(bool on) { config().cpu_backup = on; }
MEMORY_SAVER_HOOK bool tms_get_enable_cpu_backup() { return config().cpu_backup; }
MEMORY_SAVER_HOOK void tms_set_cpu_backup_backend(const char* name) { copy(config().cpu_backup_backend, name); }
MEMORY_SAVER_HOOK const char* tms_get_cpu_backup_backend() { return config().cpu_backup_backend; }
MEMORY_SAVER_HOOK void tms_set_enable_disk_backup(bool on) { config().disk_backup = on; }
MEMORY_SAVER_HOOK bool tms_get_enable_disk_backup() { return config().disk_backup; }

MEMORY_SAVER_HOOK void set_memory_margin_bytes(uint64_t bytes) { memory_saver::set_margin(bytes); }
MEMORY_SAVER_HOOK void tms_set_retain_cpu_backup(bool on) { retain_cpu_backup = on; }
MEMORY_SAVER_HOOK bool tms_get_retain_cpu_backup() { return retain_cpu_backup; }

MEMORY_SAVER_HOOK void tms_set_disk_backup_dir(const char* path) {
    if (path) setenv("TMS_DISK_BACKUP_DIR", path, 1);
}

// The library has no way to read contents that are away, so there is never a backup to point to.
MEMORY_SAVER_HOOK uint8_t* tms_get_cpu_backup_pointer(const uint8_t*, uint64_t) { return nullptr; }

// 0, or a negative status of the library. torch_memory_saver ends the process on a failure.
MEMORY_SAVER_HOOK int tms_pause(const char* tag) { return memory_saver::pause(tag); }
MEMORY_SAVER_HOOK int tms_resume(const char* tag) { return memory_saver::resume(tag); }

// Not of torch_memory_saver: the library's name for PyTorch's devices, and whether memory is released.
MEMORY_SAVER_HOOK void tms_stagehand_set_backend(const char* name) { memory_saver::set_backend(name); }
MEMORY_SAVER_HOOK bool tms_stagehand_is_released(const void* memory) { return memory_saver::released(memory); }

// For PyTorch's pools. Outside of regions the memory is CUDA's.
MEMORY_SAVER_HOOK void* tms_torch_malloc(ssize_t bytes, int device, void* /* stream */) {
    if (bytes <= 0) return nullptr;
    if (config().interesting) return memory_saver::allocate(std::size_t(bytes), device);
    static const Malloc plain = runtime_function<Malloc>("cudaMalloc", "hipMalloc");
    void* memory = nullptr;
    return plain && plain(&memory, std::size_t(bytes)) == 0 ? memory : nullptr;
}

MEMORY_SAVER_HOOK void tms_torch_free(void* memory, ssize_t, int, void* /* stream */) {
    sh_status status = SH_OK;
    if (!memory || memory_saver::give_back(memory, &status)) return;
    static const Free plain = runtime_function<Free>("cudaFree", "hipFree");
    if (plain) plain(memory);
}
