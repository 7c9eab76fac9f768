// Where the library's host memory comes from and where its staging threads run, for one device.
#pragma once

#include <cstdint>
#include <optional>

#include <sched.h>

#include <stagehand/device.h>

namespace stagehand {

struct HostPolicy {
    sh_host_alloc_fn allocate = nullptr;  // null: anonymous memory of the system
    sh_host_free_fn free = nullptr;
    void* user_data = nullptr;
    std::optional<cpu_set_t> processors;  // that the staging threads run on; nothing: all that there are
    bool is_pinned = false;               // what `allocate` gives is pinned already
    bool huge_pages = true;               // of anonymous memory
    bool chooses_node = true;             // anonymous memory comes from the node of sh_backend_device_info.host_node
};

}  // namespace stagehand
