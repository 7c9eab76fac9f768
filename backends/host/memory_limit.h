// How much memory the process may use: the machine's, or less where a control group limits it.
#pragma once

#include <cstdint>

namespace stagehand::host {

// In bytes. Never 0.
uint64_t process_memory_limit();

}  // namespace stagehand::host
