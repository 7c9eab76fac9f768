#include "extent.h"

#include <algorithm>

#include <fmt/format.h>

#include "exit_code.h"
#include "model/quantity.h"

namespace stagehand::cli::bench {

namespace {

constexpr std::uint64_t gib = std::uint64_t{1} << 30;
// 200,000 segments of 1 to 64 KiB.
constexpr std::uint64_t natural_segment_bytes = 6500 * mib;

Extent usual(bool gpu, bool quick) {
    Extent extent;
    if (gpu && !quick)
        extent = {4 * gib, 2 * gib, natural_segment_bytes, 8 * gib, natural_occupancy_bytes, natural_model_bytes, gib};
    else if (gpu)
        extent = {gib / 2, gib / 2, 400 * mib, 2 * gib, 2 * gib, 2 * gib, gib / 2};
    else if (!quick)
        extent = {512 * mib, 128 * mib, 128 * mib, 256 * mib, 256 * mib, 256 * mib, 128 * mib};
    else
        extent = {64 * mib, 64 * mib, 64 * mib, 64 * mib, 64 * mib, 64 * mib, 64 * mib};
    return extent;
}

Extent all_of(std::uint64_t bytes) {
    Extent extent;
    extent.pin = extent.sources = extent.mapping = bytes;
    extent.segments = std::min(bytes, natural_segment_bytes);
    extent.occupancy = std::min(bytes, natural_occupancy_bytes);
    extent.model = std::min(bytes, natural_model_bytes);
    extent.shared = std::min(bytes, gib);
    return extent;
}

std::uint64_t free_host_bytes(const HostLimits& host) {
    if (!host.cgroup_limit_bytes || !host.cgroup_used_bytes) return host.available_bytes;
    const std::uint64_t left = *host.cgroup_limit_bytes - std::min(*host.cgroup_limit_bytes, *host.cgroup_used_bytes);
    return std::min(host.available_bytes, left);
}

void refuse_above(std::uint64_t bytes, std::uint64_t room, const char* of) {
    if (bytes > room) {
        throw CommandError(ExitCode::device, fmt::format("--bytes: {} is more than {}, which is {}",
                                                         model::format_bytes(bytes), of, model::format_bytes(room)));
    }
}

}  // namespace

std::uint64_t scaled_bytes(std::uint64_t bytes, double scale) {
    constexpr std::uint64_t unit = 4096;
    const double wanted = static_cast<double>(bytes) * scale;
    return std::max(static_cast<std::uint64_t>(wanted) / unit, std::uint64_t{1}) * unit;
}

std::vector<std::uint64_t> model_sizes(double scale) {
    std::vector<std::uint64_t> sizes(model_layers + 2, scaled_bytes(model_layer_bytes, scale));
    sizes.front() = sizes.back() = scaled_bytes(model_table_bytes, scale);
    return sizes;
}

Extent choose_extent(const sh_device_caps& caps, std::uint64_t budget_bytes, const HostLimits& host,
                     const BenchOptions& options) {
    const bool gpu = (caps.flags & SH_DEVICE_IS_GPU) != 0;
    const bool simulation = (caps.flags & SH_DEVICE_VIRTUAL_TIME) != 0;
    const std::uint64_t host_room = simulation ? UINT64_MAX : free_host_bytes(host) / 3;
    std::uint64_t device_room = budget_bytes / 2;
    if (!gpu) {
        // The memory of this device is host memory.
        device_room = std::min(device_room, host_room);
    }
    if (options.bytes != 0) {
        refuse_above(options.bytes, host_room, "a third of the host's free memory");
        refuse_above(options.bytes, device_room, "half of the device's free memory");
    }
    Extent extent = options.bytes != 0 ? all_of(options.bytes) : usual(gpu || simulation, options.quick);
    extent.pin = std::min(extent.pin, host_room);
    extent.sources = std::min(extent.sources, host_room);
    extent.shared = std::min(extent.shared, host_room);
    extent.mapping = std::min(extent.mapping, device_room);
    extent.occupancy = std::min({extent.occupancy, device_room, host_room});
    extent.model = std::min(extent.model, device_room);
    // The largest block must fit into the memory that the blocks share.
    extent.model = std::min(extent.model, extent.shared / mib * natural_model_bytes / (model_table_bytes / mib));
    return extent;
}

}  // namespace stagehand::cli::bench
