// Allocation as torch_memory_saver's hooks do it: each thread says with which tag it allocates, and whether the memory
// can leave the device. memory_saver_api.cpp has the functions that Python calls, and memory_saver_preload.cpp those
// that replace CUDA's.
#pragma once

#include <stagehand/stagehand.h>

#include <cstddef>
#include <cstdint>

#define MEMORY_SAVER_HOOK extern "C" __attribute__((visibility("default")))

namespace memory_saver {

// What a thread allocates. The environment has the first values of every thread.
struct Config {
    bool interesting;  // the memory is from sh_alloc()
    bool cpu_backup;
    bool disk_backup;
    char tag[64];
    char cpu_backup_backend[16];
};
Config& config();

// The name of the library's backend for PyTorch's devices: "cuda", unless it is set.
void set_backend(const char* name);
// Memory that an allocation leaves free on its device.
void set_margin(uint64_t bytes);

// Memory of sh_alloc() by the configuration of this thread. nullptr: there is too little, and sh_last_error() says why.
void* allocate(std::size_t bytes, int device);
// Returns false if the memory is not from allocate(). `status` is that of sh_free().
bool give_back(void* memory, sh_status* status);

// On all devices, for one tag or for all (nullptr, ""). If a device fails, those before it go back to their state.
sh_status pause(const char* tag);
sh_status resume(const char* tag);
// Whether the memory, or an allocation around it, is released.
bool released(const void* memory);

}  // namespace memory_saver
