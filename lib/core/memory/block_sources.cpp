#include "core/memory/block_sources.h"

#include <algorithm>
#include <string>

#include "base/log.h"
#include "core/memory/block_desc.h"
#include "transfer/route/route.h"

namespace stagehand::core {

Status open_sources(BackendDevice& device, const sh_block_desc& desc, const BlockCopies& copies, size_t index,
                    uint64_t offset, uint64_t staged_bytes, Block& block) {
    block.detail = std::make_unique<BlockDetail>();
    BlockDetail& detail = *block.detail;
    detail.on_load = desc.on_load;
    detail.user_data = desc.user_data;
    if (desc.name) detail.name = desc.name;
    transfer::RouteOptions options = {(desc.flags & SH_BLOCK_PIN) != 0, nullptr, staged_bytes};
    detail.segments.reserve(desc.segment_count);
    for (uint64_t k = 0; k < desc.segment_count; k++) {
        if (!copies.empty()) options.copy = &copies[k];
        const sh_segment& from = copies.empty() ? desc.segments[k] : copies[k].segment;
        if (!from.bytes) continue;
        transfer::Segment& segment = detail.segments.emplace_back();
        segment.offset = offset + from.offset;
        segment.bytes = from.bytes;
        Status not_pinned;
        const Status status = transfer::open_segment(device, from, options, &segment, &not_pinned);
        if (!not_pinned.ok())
            log_line(SH_LOG_WARNING, "%s could not be pinned: %s", describe(desc, index).c_str(), not_pinned.text());
        if (!status.ok()) return status.within(describe(desc, index) + ", segment " + std::to_string(k));
    }
    std::sort(detail.segments.begin(), detail.segments.end(),
              [](const auto& a, const auto& b) { return a.offset < b.offset; });
    return transfer::join_segments(device, detail.segments);
}

void close_sources(BackendDevice& device, BlockDetail& detail) {
    for (transfer::Segment& segment : detail.segments) transfer::close_segment(device, &segment);
    detail.segments.clear();
}

}  // namespace stagehand::core
