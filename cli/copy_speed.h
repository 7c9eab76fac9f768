// How fast a device copies, measured through the library.
#pragma once

#include <cstdint>
#include <optional>

#include <stagehand/stagehand.h>

namespace stagehand::cli {

struct CopySpeed {
    double to_device_bytes_per_second = 0;
    double to_host_bytes_per_second = 0;
    std::uint64_t bytes = 0;  // of host memory that was copied, in blocks of a few megabytes
    bool pinned = false;      // whether the system let it be pinned
};

// Streams blocks of host memory to the device, and reads one back, some times each: the best speed is what
// the link gives when nothing else runs. The blocks pass through device memory of a few, within the budget
// that is left, and come from more memory than caches hold, as a model does. All is given back. Takes a few
// tenths of a second, on slow links one or two. Nothing if the budget is less than four pages.
std::optional<CopySpeed> measure_copy_speed(sh_device* device);

// Both directions while each keeps the link busy.
struct BothWays {
    double to_device_bytes_per_second = 0;
    double to_host_bytes_per_second = 0;
};

// The same blocks, streamed to the device on the calling thread while another thread reads a block back to
// memory of its own. Takes as long again, and needs a real clock. Nothing if the budget is less than five
// pages.
std::optional<BothWays> measure_both_ways(sh_device* device);

}  // namespace stagehand::cli
