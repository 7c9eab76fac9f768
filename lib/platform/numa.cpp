#include "platform/numa.h"

#include <climits>

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace stagehand::platform {

// The call of the system, because libnuma would be a library more for everybody who links this one.
void prefer_node(void* memory, uint64_t bytes, uint64_t host_node) noexcept {
    if (host_node == 0 || host_node > kMostNodes) return;
    int chosen = MPOL_DEFAULT;  // by the process or by a tool that started it
    if (syscall(SYS_get_mempolicy, &chosen, nullptr, 0UL, nullptr, 0UL) != 0 || chosen != MPOL_DEFAULT) return;
    constexpr uint32_t kBits = sizeof(unsigned long) * CHAR_BIT;
    const uint64_t node = host_node - 1;
    unsigned long nodes[kMostNodes / kBits] = {};
    nodes[node / kBits] = 1UL << node % kBits;
    // The kernel reads one bit less than it is told.
    (void)syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, nodes, kMostNodes + 1UL, 0);
}

}  // namespace stagehand::platform
