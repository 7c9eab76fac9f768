// Functions of the runtime, for the library that stands in front of nothing.
#include <dlfcn.h>

#include "real.h"

namespace memory_saver {

// PyTorch has loaded them.
void* real_runtime_function(const char* name) { return dlsym(RTLD_DEFAULT, name); }

}  // namespace memory_saver
