// Allocation as torch_memory_saver's libraries do it: each thread says with which tag it allocates, and whether the
// memory can leave the device. api.cpp has the functions that Python calls. runtime.cpp, driver.cpp and lookup.cpp have
// those that stand in front of CUDA's and HIP's.
#pragma once

#include <stagehand/stagehand.h>

#include <cstddef>
#include <cstdint>

#define MEMORY_SAVER_HOOK extern "C" __attribute__((visibility("default")))

// No function throws, prints or ends the process.
namespace memory_saver {

// What a thread allocates. The environment has the first values of every thread.
struct Config {
    bool interesting;  // the memory is from sh_alloc()
    bool cpu_backup;
    bool disk_backup;
    char tag[64];  // empty: that of nothing, and allocations fail
    char cpu_backup_backend[16];
};
Config& config();
// Whether a variable of the environment is set to yes.
bool is_true(const char* variable);
// TMS_STAGEHAND_DRIVER: whether the functions of the driver are taken, and those that programs look up. Libraries such
// as NCCL have a runtime of their own, and do not expect their memory to leave. So torch_memory_saver does not take
// them.
bool takes_driver();
// The name of a variable of the environment whose value is wrong, or nullptr. Calls of the library fail then.
const char* wrong_variable();

// The name of the library's backend for PyTorch's devices: "cuda", unless it is set.
void set_backend(const char* name);
// Memory that an allocation leaves free on its device.
void set_margin(uint64_t bytes);
// Also in the environment, for processes that this one starts. Empty: TMS_DISK_BACKUP_DIR decides.
void set_disk_folder(const char* path);

// True while this thread is in one of the functions below. What the library itself calls is then CUDA's own.
bool inside();

// Memory of sh_alloc() by the configuration of this thread.
sh_status allocate(std::size_t bytes, int device, void** memory);
// Returns false if the memory is not from allocate(). `status` is that of sh_free().
bool give_back(void* memory, sh_status* status);

// On all devices, for one tag or for all (nullptr, ""). If a device fails, those before it go back to their state.
// `unused` has ranges that hold nothing.
sh_status pause(const char* tag, const sh_memory_range* unused, uint64_t unused_count);
sh_status resume(const char* tag);

// Copies contents that are away. SH_NOT_READY: the memory is on the device, or is not from allocate().
sh_status read(const void* memory, uint64_t bytes, void* contents);
// The contents of the allocation, in host memory that is the library's. It stays until the tag is resumed or the memory
// is freed. nullptr: there are none.
uint8_t* backup_of(const void* memory, uint64_t bytes);

// Why the last call of this thread has failed, as sh_last_error().
uint64_t error_text(char* text, uint64_t capacity);

}  // namespace memory_saver
