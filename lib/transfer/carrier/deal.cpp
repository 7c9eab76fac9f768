#include "transfer/carrier/deal.h"

#include <algorithm>
#include <limits>

namespace stagehand::transfer {
namespace {

// The time at which all bytes have been carried. A link that is free only after it gets nothing.
double end_of(double bytes, std::span<const DealtLink> links) {
    for (double end = std::numeric_limits<double>::infinity();;) {
        double speed = 0, offset = 0;  // of the links that are free before the end
        for (const DealtLink& link : links) {
            if (link.bytes_per_ns <= 0 || link.free_at_ns >= end) continue;
            speed += link.bytes_per_ns;
            offset += link.bytes_per_ns * link.free_at_ns;
        }
        const double earlier = (bytes + offset) / speed;
        if (earlier >= end) return end;
        end = earlier;
    }
}

}  // namespace

void deal(uint64_t bytes, uint64_t grain, uint64_t least, double now_ns, std::span<DealtLink> links) {
    for (DealtLink& link : links) {
        link.bytes = 0;
        link.free_at_ns = std::max(link.free_at_ns, now_ns);
    }
    const double end = end_of(static_cast<double>(bytes), links);
    uint64_t left = bytes;
    for (DealtLink& link : links.subspan(1)) {
        const double share = link.bytes_per_ns > 0 ? link.bytes_per_ns * (end - link.free_at_ns) : 0;
        if (share < static_cast<double>(std::max(least, grain))) continue;
        link.bytes = std::min(left, static_cast<uint64_t>(share) / grain * grain);
        left -= link.bytes;
    }
    links.front().bytes = left;
    for (DealtLink& link : links)
        if (link.bytes) link.free_at_ns += static_cast<double>(link.bytes) / link.bytes_per_ns;
}

}  // namespace stagehand::transfer
