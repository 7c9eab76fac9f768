#include "core/plan/link_costs.h"

#include <algorithm>
#include <cmath>

#include "transfer/carrier/carrier.h"
#include "transfer/unpack/batches.h"

namespace stagehand::core {
namespace {

constexpr double kCostSteps = 64;  // of costs

// The bytes that one copy brings at least, from this segment on or from one before it.
uint64_t bytes_at_once(const Registry& registry, const std::vector<transfer::Segment>& segments, size_t i,
                       const LinkSpeeds& speeds) {
    const transfer::Segment& segment = segments[i];
    if (segment.packed() && speeds.unpack_ns_per_byte > 0) {
        const double packed = static_cast<double>(segment.bytes) * transfer::packed_part(segment.source);
        return std::min(static_cast<uint64_t>(packed), speeds.batch_bytes);
    }
    if (!segment.straight()) return std::min(segment.bytes, registry.staged_bytes());
    size_t first = i, end = i + 1;
    while (first > 0 && segments[first].joined) first--;
    while (end < segments.size() && segments[end].joined) end++;
    // Half of it may be resident, and the rest may come in parts.
    return (segments[end - 1].end() - segments[first].offset) / 2;
}

// What a byte costs beside one that all links bring. They do if enough bytes come at once.
double cost_alone(const Registry& registry, const std::vector<transfer::Segment>& segments, size_t i,
                  const LinkSpeeds& speeds) {
    if (speeds.own_bytes_per_ns >= speeds.bytes_per_ns) return 1;
    const bool divided = segments[i].source.kind != SH_SOURCE_DEVICE &&
                         bytes_at_once(registry, segments, i, speeds) >= transfer::Carrier::least_bytes();
    return divided ? 1 : speeds.bytes_per_ns / speeds.own_bytes_per_ns;
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
                const double alone = cost_alone(registry, segments, k, speeds);
                const bool unpacked = segment.packed() && speeds.unpack_ns_per_byte > 0;
                const double all = static_cast<double>(segment.bytes);
                bytes += all;
                if (!segment.straight() && !(unpacked && segment.route == transfer::Route::packed))
                    read += unpacked ? brought * all : all;
                on_link += all * (unpacked ? std::max(brought * transfer::packed_part(segment.source) * alone,
                                                      speeds.unpack_ns_per_byte * speeds.bytes_per_ns)
                                           : alone);
            }
        }
        if (bytes > 0) cost.by_workers = read / bytes;
        if (on_link != bytes) cost.link = std::max(1.0, std::round(on_link / bytes * kCostSteps)) / kCostSteps;
    }
}

}  // namespace stagehand::core
