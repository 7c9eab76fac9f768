// The bytes that each group of measurements uses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stagehand/stagehand.h>

#include "host_limits.h"
#include "options.h"

namespace stagehand::cli::bench {

inline constexpr std::uint64_t mib = std::uint64_t{1} << 20;

// The shapes of an 8B model at their real size: an embedding, 32 layers, a head.
inline constexpr std::uint64_t model_table_bytes = std::uint64_t{1002} << 20;
inline constexpr std::uint64_t model_layer_bytes = std::uint64_t{416} << 20;
inline constexpr std::uint64_t model_layers = 32;
// The memory that the group "occupancy" pauses at its real size.
inline constexpr std::uint64_t natural_occupancy_bytes = std::uint64_t{16} << 30;
inline constexpr std::uint64_t natural_model_bytes = 2 * model_table_bytes + model_layers * model_layer_bytes;

// In bytes.
struct Extent {
    std::uint64_t pin = 0;        // that the group "pinning" pins and frees
    std::uint64_t sources = 0;    // of the scratch file, and of pageable memory
    std::uint64_t segments = 0;   // of the blocks that small segments are packed into
    std::uint64_t mapping = 0;    // of device memory, mapped by the group "mapping"
    std::uint64_t occupancy = 0;  // of device memory that is paused, and of host memory for its contents
    std::uint64_t model = 0;      // of the 8B model as it is streamed, and the device's budget
    std::uint64_t shared = 0;     // of pinned memory, which the models' blocks share as their source

    // The factor by which the shapes of models are scaled down.
    double scale() const { return static_cast<double>(model) / static_cast<double>(natural_model_bytes); }
};

// `bytes` times the scale, in whole units of 4 KiB, at least one unit.
std::uint64_t scaled_bytes(std::uint64_t bytes, double scale);
// The blocks of the 8B model at a scale.
std::vector<std::uint64_t> model_sizes(double scale);

// Sizes for a device with these capabilities and `budget_bytes` of memory. They need no more than a third of the host's
// free memory at a time, and no more than half of the device's memory. Throws CommandError if options.bytes asks for
// more.
Extent choose_extent(const sh_device_caps& caps, std::uint64_t budget_bytes, const HostLimits& host,
                     const BenchOptions& options);

}  // namespace stagehand::cli::bench
