#include "core/plan/link_costs.h"

#include <algorithm>
#include <cmath>

#include "transfer/bond/bond.h"
#include "transfer/unpack/batches.h"

namespace stagehand::core {
namespace {

constexpr double kCostSteps = 64;  // of costs

// What a byte costs on the link of the device alone, beside a byte that helpers bring a part of. They do if enough
// bytes come at once.
double cost_alone(const transfer::Segment& segment, uint64_t bytes_at_once, const LinkSpeeds& speeds) {
    const bool helped = segment.source.kind != SH_SOURCE_DEVICE && bytes_at_once >= transfer::Bond::least_bytes();
    return helped ? 1 : speeds.bytes_per_ns / speeds.own_bytes_per_ns;
}

// The bytes that one copy can bring, from this segment on or from one before it.
uint64_t bytes_at_once(const std::vector<transfer::Segment>& segments, size_t i) {
    size_t first = i, end = i + 1;
    while (first > 0 && segments[first].joined) first--;
    while (end < segments.size() && segments[end].joined) end++;
    return segments[end - 1].end() - segments[first].offset;
}

}  // namespace

void find_link_costs(Registry& registry, const LinkSpeeds& speeds, std::span<const double> kept_part,
                     std::vector<LinkCost>* out) {
    const auto units = registry.units();
    out->assign(units.size(), {});
    for (size_t i = 0; i < units.size(); i++) {
        if (!units[i].live) continue;
        LinkCost& cost = (*out)[i];
        const double brought = i < kept_part.size() ? 1 - kept_part[i] : 1;
        double bytes = 0, on_link = 0, read = 0;
        for (const Block& block : registry.blocks_of(units[i])) {
            if (!block.id) continue;
            const std::vector<transfer::Segment>& segments = block.detail->segments;
            for (size_t k = 0; k < segments.size(); k++) {
                const transfer::Segment& segment = segments[k];
                const double packed = segment.packed() ? transfer::packed_part(segment.source) : 1;
                const auto on_way = static_cast<uint64_t>(static_cast<double>(bytes_at_once(segments, k)) * packed);
                const double alone =
                    speeds.own_bytes_per_ns < speeds.bytes_per_ns ? cost_alone(segment, on_way, speeds) : 1;
                const bool unpacked = segment.packed() && speeds.unpack_ns_per_byte > 0;
                const double all = static_cast<double>(segment.bytes);
                bytes += all;
                if (!segment.straight() && !(unpacked && segment.route == transfer::Route::packed))
                    read += unpacked ? brought * all : all;
                on_link += all * (unpacked ? std::max(brought * packed * alone,
                                                      speeds.unpack_ns_per_byte * speeds.bytes_per_ns)
                                           : alone);
            }
        }
        if (bytes > 0) cost.by_workers = read / bytes;
        if (on_link != bytes) cost.link = std::max(1.0, std::round(on_link / bytes * kCostSteps)) / kCostSteps;
    }
}

}  // namespace stagehand::core
