#include "core/plan/link_costs.h"

#include <algorithm>
#include <cmath>

#include "transfer/bond/bond.h"
#include "transfer/unpack/batches.h"

namespace stagehand::core {
namespace {

constexpr double kCostSteps = 64;  // of costs

// The bytes of segments of which helpers bring a part, because one command copies enough of them.
double helped_bytes(const std::vector<transfer::Segment>& segments) {
    double helped = 0;
    for (size_t i = 0, end = 0; i < segments.size(); i = end) {
        uint64_t bytes = segments[i].bytes;
        for (end = i + 1; end < segments.size() && segments[end].joined; end++) bytes += segments[end].bytes;
        const bool from_host = segments[i].straight() && segments[i].source.kind != SH_SOURCE_DEVICE;
        if (from_host && bytes >= transfer::Bond::kLeastBytes) helped += static_cast<double>(bytes);
    }
    return helped;
}

}  // namespace

void find_link_costs(Registry& registry, const LinkSpeeds& speeds, std::span<const double> kept_part,
                     std::vector<LinkCost>* out) {
    const auto units = registry.units();
    const double alone = speeds.bytes_per_ns / speeds.own_bytes_per_ns;  // cost of a byte that helpers do not bring
    out->assign(units.size(), {});
    for (size_t i = 0; i < units.size(); i++) {
        if (!units[i].live) continue;
        LinkCost& cost = (*out)[i];
        const double brought = i < kept_part.size() ? 1 - kept_part[i] : 1;
        double bytes = 0, on_link = 0, read = 0;
        for (const Block& block : registry.blocks_of(units[i])) {
            if (!block.id) continue;
            for (const transfer::Segment& segment : block.detail->segments) {
                const bool unpacked = segment.packed() && speeds.unpack_ns_per_byte > 0;
                const double all = static_cast<double>(segment.bytes);
                bytes += all;
                if (!segment.straight() && !(unpacked && segment.route == transfer::Route::packed))
                    read += unpacked ? brought * all : all;
                on_link += all * (unpacked ? std::max(brought * transfer::packed_part(segment.source) * alone,
                                                      speeds.unpack_ns_per_byte * speeds.bytes_per_ns)
                                           : alone);
            }
            if (alone > 1) on_link -= (alone - 1) * helped_bytes(block.detail->segments);
        }
        if (bytes > 0) cost.by_workers = read / bytes;
        if (on_link != bytes) cost.link = std::max(1.0, std::round(on_link / bytes * kCostSteps)) / kCostSteps;
    }
}

}  // namespace stagehand::core
