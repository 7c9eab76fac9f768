// The speed of a device's copies, measured through the library.
#pragma once

#include <cstdint>
#include <optional>

#include <stagehand/stagehand.h>

namespace stagehand::cli {

struct CopySpeed {
    double to_device_bytes_per_second = 0;
    double to_host_bytes_per_second = 0;
    std::uint64_t bytes = 0;  // host memory that was copied, in blocks of a few megabytes
    bool pinned = false;      // whether the system allowed that memory to be pinned
};

// Streams blocks of host memory to the device, and reads one back, several times each. The best speed is the speed of
// the link when nothing else runs. The blocks share the device memory of a few blocks, within the budget that is left,
// and come from more memory than caches hold, as a model does. All memory is freed again. Takes a few tenths of a
// second, on slow links one or two seconds. Returns nothing if the budget is less than four pages.
std::optional<CopySpeed> measure_copy_speed(sh_device* device);

// The speeds of both directions at the same time.
struct BothWays {
    double to_device_bytes_per_second = 0;
    double to_host_bytes_per_second = 0;
};

// Streams the same blocks to the device on the calling thread, while another thread reads a block back to memory of its
// own. Takes as long as measure_copy_speed(), and needs a device with a real clock. Returns nothing if the budget is
// less than five pages.
std::optional<BothWays> measure_both_ways(sh_device* device);

}  // namespace stagehand::cli
