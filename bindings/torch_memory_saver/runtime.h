// The functions that stand in front of the runtime's and of the driver's, under names of their own: the names of CUDA
// may be those of the program.
#pragma once

#include <cstddef>
#include <cstdint>

#include "real.h"

namespace memory_saver {

// Whether this thread's allocations are of this library. They fail if the environment is wrong.
bool is_wanted();
// Memory of this library, for a thread that is in a region. Returns an error of CUDA.
int allocate_here(GetDevice get_device, void** memory, std::size_t bytes);
// Returns false if the memory is not of this library. `result` is an error of CUDA.
bool free_here(void* memory, int* result);

int cuda_malloc(void** memory, std::size_t bytes);
int cuda_free(void* memory);
int hip_malloc(void** memory, std::size_t bytes);
int hip_free(void* memory);

int driver_alloc(uint64_t* address, std::size_t bytes);
int driver_free(uint64_t address);
int driver_look_up(const char* symbol, void** function, int version, uint64_t flags);
int driver_look_up_with_status(const char* symbol, void** function, int version, uint64_t flags, int* status);

}  // namespace memory_saver
