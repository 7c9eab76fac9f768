// How fast a device copies, measured through the library.
#pragma once

#include <cstdint>

#include <stagehand/stagehand.h>

namespace stagehand::cli {

struct CopySpeed {
    double to_device_bytes_per_second = 0;
    double to_host_bytes_per_second = 0;
    std::uint64_t bytes = 0;  // of one copy
    bool pinned = false;      // whether the system let the host memory be pinned
};

// Copies one block of host memory to the device and back, some times each way, and takes the fastest: what the
// link gives when nothing else runs. Uses half of the budget that is left at most, and gives it back.
CopySpeed measure_copy_speed(sh_device* device);

}  // namespace stagehand::cli
