#include "core/memory/block_sources.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/no_throw.h"
#include "core/memory/block_desc.h"
#include "transfer/host/pinned_memory.h"
#include "transfer/route/route.h"

namespace stagehand::core {

namespace {

bool by_offset(const transfer::Segment& a, const transfer::Segment& b) { return a.offset < b.offset; }

void close_all(BackendDevice& device, std::vector<transfer::Segment>& segments) {
    for (transfer::Segment& segment : segments) transfer::close_segment(device, &segment);
    segments.clear();
}

}  // namespace

Status open_sources(BackendDevice& device, const sh_block_desc& desc, const BlockCopies& copies, size_t index,
                    uint64_t offset, uint64_t staged_bytes, BlockDetail* out) {
    const auto open = [&](const sh_segment& from, const transfer::PackedCopy* copy, size_t number,
                          std::vector<transfer::Segment>& to) {
        const transfer::RouteOptions options = {(desc.flags & SH_BLOCK_PIN) != 0, copy, staged_bytes};
        transfer::Segment& segment = to.emplace_back();
        segment.offset = offset + from.offset;
        segment.bytes = from.bytes;
        Status not_pinned;
        const Status status = transfer::open_segment(device, from, options, &segment, &not_pinned);
        if (!not_pinned.ok())
            log_line(SH_LOG_WARNING, "%s could not be pinned: %s", describe(desc, index).c_str(), not_pinned.text());
        return status.within(describe(desc, index) + ", segment " + std::to_string(number));
    };
    out->segments.reserve(desc.segment_count);
    for (uint64_t k = 0; k < desc.segment_count; k++) {
        if (!desc.segments[k].bytes) continue;
        if (copies.empty()) {
            SH_TRY(open(desc.segments[k], nullptr, k, out->segments));
            continue;
        }
        SH_TRY(open(copies[k].segment, &copies[k], k, out->segments));
        if (copies[k].memory && (desc.flags & SH_BLOCK_MUTABLE)) SH_TRY(open(desc.segments[k], nullptr, k, out->plain));
    }
    std::sort(out->segments.begin(), out->segments.end(), by_offset);
    std::sort(out->plain.begin(), out->plain.end(), by_offset);
    out->spent.reserve(out->plain.size());
    return transfer::join_segments(device, out->segments);
}

void close_sources(BackendDevice& device, BlockDetail& detail) {
    for (auto* const segments : {&detail.segments, &detail.plain, &detail.spent}) close_all(device, *segments);
}

const transfer::Segment& written_segment(const BlockDetail& detail, const transfer::Segment& segment) {
    const auto found = std::lower_bound(detail.plain.begin(), detail.plain.end(), segment, by_offset);
    return found != detail.plain.end() && found->offset == segment.offset ? *found : segment;
}

void read_news(BackendDevice& device, BlockDetail& detail) noexcept {
    if (!std::exchange(detail.has_news, false)) return;
    for (transfer::Segment& plain : detail.plain) {
        const auto copy = std::lower_bound(detail.segments.begin(), detail.segments.end(), plain, by_offset);
        detail.spent.push_back(std::exchange(*copy, std::move(plain)));  // there is room
    }
    detail.plain.clear();
    // Segments that are not joined are copied one by one.
    (void)no_throw([&] { return transfer::join_segments(device, detail.segments); }).ok();
}

void close_spent(BackendDevice& device, BlockDetail& detail) noexcept { close_all(device, detail.spent); }

}  // namespace stagehand::core
