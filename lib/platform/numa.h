// The NUMA nodes of host memory.
#pragma once

#include <cstdint>

namespace stagehand::platform {

constexpr uint32_t kMostNodes = 1024;

// Takes the pages of the memory from a node, or from others if it is full. The memory has no pages yet. `host_node` is
// 1 + the number of the node, and 0 if it is not known. It is only advice: nothing happens if the thread has another
// policy than the system's (numactl), or if the system has no such node or refuses.
void prefer_node(void* memory, uint64_t bytes, uint64_t host_node) noexcept;

}  // namespace stagehand::platform
