#include "core/plan/link_costs.h"

#include <algorithm>
#include <cmath>

#include "transfer/unpack/batches.h"

namespace stagehand::core {
namespace {

constexpr double kCostSteps = 64;  // of costs

}  // namespace

void find_link_costs(Registry& registry, double unpack_ns_per_byte, double link_bytes_per_ns,
                     std::span<const double> kept_part, std::vector<LinkCost>* out) {
    const auto units = registry.units();
    out->assign(units.size(), {});
    for (size_t i = 0; i < units.size(); i++) {
        if (!units[i].live) continue;
        LinkCost& cost = (*out)[i];
        const double brought = i < kept_part.size() ? 1 - kept_part[i] : 1;
        double bytes = 0, on_link = 0, read = 0;
        for (const Block& block : registry.blocks_of(units[i])) {
            if (!block.id) continue;
            for (const transfer::Segment& segment : block.detail->segments) {
                const bool unpacked = segment.packed() && unpack_ns_per_byte > 0;
                const double all = static_cast<double>(segment.bytes);
                bytes += all;
                if (!segment.straight() && !(unpacked && segment.route == transfer::Route::packed))
                    read += unpacked ? brought * all : all;
                on_link += all * (unpacked ? std::max(brought * transfer::packed_part(segment.source),
                                                      unpack_ns_per_byte * link_bytes_per_ns)
                                           : 1);
            }
        }
        if (bytes > 0) cost.by_workers = read / bytes;
        if (on_link != bytes) cost.link = std::max(1.0, std::round(on_link / bytes * kCostSteps)) / kCostSteps;
    }
}

}  // namespace stagehand::core
