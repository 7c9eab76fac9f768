#include "core/memory/block_sources.h"

#include <algorithm>
#include <string>

#include "base/log.h"
#include "core/memory/block_desc.h"
#include "transfer/host/pinned_memory.h"

namespace stagehand::core {
namespace {

Status reach(BackendDevice& device, const transfer::Source& source) {
    uint32_t reachable = 0;
    if (!device.reaches_memory()) return Status(SH_ERROR_UNSUPPORTED, "kind: this backend copies from no device memory");
    SH_TRY(device.memory_is_reachable(reinterpret_cast<uint64_t>(source.pointer), source.bytes, &reachable));
    return reachable ? Status() : Status(SH_ERROR_INVALID_ARGUMENT, "pointer is not device memory that this device can copy from");
}

// Segments whose pinned memory lies in one piece, as a file's tensors do, are copied by one command.
Status join_segments(BackendDevice& device, BlockDetail& detail) {
    for (size_t i = 1; i < detail.segments.size(); i++) {
        const Segment& before = detail.segments[i - 1];
        Segment& segment = detail.segments[i];
        char* const start = static_cast<char*>(before.source.pointer);
        if (!before.direct || !segment.direct || before.pinned_piece || segment.pinned_piece) continue;
        if (before.source.kind == SH_SOURCE_DEVICE || segment.source.kind == SH_SOURCE_DEVICE) continue;
        if (start + before.bytes != segment.source.pointer || before.offset + before.bytes != segment.offset) continue;
        uint32_t pinned = device.has(SH_BACKEND_CONTENTLESS);
        if (!pinned) SH_TRY(device.host_is_pinned(start, before.bytes + segment.bytes, &pinned));
        segment.joined = pinned;
    }
    return Status();
}

// A backend without contents takes any source as pinned memory.
Status open_segment(BackendDevice& device, const sh_block_desc& desc, size_t index, const sh_segment& from, Segment& segment) {
    if (device.has(SH_BACKEND_CONTENTLESS)) {
        segment.direct = true;
        segment.source.pointer = from.pointer;
        return Status();
    }
    SH_TRY(transfer::open_source(from, &segment.source));
    if (from.kind == SH_SOURCE_DEVICE) SH_TRY(reach(device, segment.source));
    segment.direct = from.kind == SH_SOURCE_DEVICE;
    if (from.kind != SH_SOURCE_POINTER) return Status();
    if (desc.flags & SH_BLOCK_PIN) {
        if (Status status = transfer::pin_foreign(device, from.pointer, from.bytes, &segment.pinned_piece); !status.ok())
            log_line(SH_LOG_WARNING, "%s: not pinned: %s", describe(desc, index).c_str(), status.text());
    }
    uint32_t pinned = 0;
    SH_TRY(device.host_is_pinned(from.pointer, from.bytes, &pinned));
    segment.direct = pinned;
    return Status();
}

}  // namespace

Status open_sources(BackendDevice& device, const sh_block_desc& desc, size_t index, uint64_t offset, Block& block) {
    block.detail = std::make_unique<BlockDetail>();
    BlockDetail& detail = *block.detail;
    detail.on_load = desc.on_load;
    detail.user_data = desc.user_data;
    if (desc.name) detail.name = desc.name;
    detail.segments.reserve(desc.segment_count);
    for (uint64_t k = 0; k < desc.segment_count; k++) {
        const sh_segment& from = segment_at(desc, k);
        if (!from.bytes) continue;
        Segment& segment = detail.segments.emplace_back();
        segment.offset = offset + from.offset;
        segment.bytes = from.bytes;
        if (Status status = open_segment(device, desc, index, from, segment); !status.ok())
            return status.within(describe(desc, index) + ", segment " + std::to_string(k));
    }
    std::sort(detail.segments.begin(), detail.segments.end(), [](const Segment& a, const Segment& b) { return a.offset < b.offset; });
    return join_segments(device, detail);
}

void close_sources(BackendDevice& device, BlockDetail& detail) {
    for (Segment& segment : detail.segments) {
        if (segment.pinned_piece) transfer::unpin_foreign(device, segment.source.pointer, segment.bytes, segment.pinned_piece);
        transfer::close_source(&segment.source);
    }
    detail.segments.clear();
}

}  // namespace stagehand::core
