#include "transfer/route/route.h"

#include "codec/frame_index.h"
#include "transfer/host/pinned_memory.h"

namespace stagehand::transfer {
namespace {

Status check_reachable(BackendDevice& device, const Source& source) {
    uint32_t reachable = 0;
    if (!device.reaches_memory())
        return Status(SH_ERROR_UNSUPPORTED, "kind: this backend cannot copy from device memory");
    SH_TRY(device.memory_is_reachable(reinterpret_cast<uint64_t>(source.pointer), source.bytes, &reachable));
    return reachable ? Status()
                     : Status(SH_ERROR_INVALID_ARGUMENT, "pointer is not device memory that this device can copy from");
}

// Calls `visit(chunk, bytes)` for each chunk that the segment needs, until it returns false.
template <typename Visit>
bool for_all_chunks(const Source& source, Visit visit) {
    const codec::FrameIndex& index = *source.packed;
    const uint64_t end = (source.packed_offset + source.bytes - 1) / index.chunk_bytes() + 1;
    for (uint64_t chunk = source.packed_offset / index.chunk_bytes(); chunk < end; chunk++)
        if (!visit(chunk, index.begin_of(chunk + 1) - index.begin_of(chunk))) return false;
    return true;
}

// The device does not compare checksums. A tensor that is not whole goes through the workers, which say what is wrong.
bool packed_tensor_is_whole(const Source& source) {
    const auto* const bytes = static_cast<const uint8_t*>(source.pointer);
    codec::Tiles tiles;
    return for_all_chunks(source, [&](uint64_t chunk, uint64_t size) {
        const std::span packed(bytes + source.packed->begin_of(chunk), size);
        return source.packed->find_tiles(chunk, packed, &tiles).ok();
    });
}

Route packed_route(const Source& source, bool pinned, bool is_copy, uint64_t staged_bytes) {
    if (pinned && (is_copy || packed_tensor_is_whole(source))) return Route::packed;
    const bool fits = for_all_chunks(source, [&](uint64_t, uint64_t size) { return size <= staged_bytes; });
    return fits ? Route::packed_staged : Route::staged;
}

bool continues(const Segment& before, const Segment& segment) {
    const bool pinned_whole = !before.pinned_piece && !segment.pinned_piece;
    const bool on_host = before.source.kind != SH_SOURCE_DEVICE && segment.source.kind != SH_SOURCE_DEVICE;
    if (!before.straight() || !segment.straight() || !pinned_whole || !on_host) return false;
    return static_cast<char*>(before.source.pointer) + before.bytes == segment.source.pointer &&
           before.end() == segment.offset;
}

}  // namespace

Status open_segment(BackendDevice& device, const sh_segment& from, const RouteOptions& options, Segment* out,
                    Status* out_pin_failure) {
    // A backend without contents treats every source as pinned memory. Memory may have none there, but a file has, and
    // tells the sizes of packed chunks.
    if (device.has(SH_BACKEND_CONTENTLESS)) {
        const bool packed = from.packed_bytes && from.kind == SH_SOURCE_FILE && device.unpacks();
        out->route = packed ? Route::packed : Route::straight;
        if (packed) return open_source(from, &out->source);
        out->source.pointer = writable(from.pointer);
        return Status();
    }
    const bool is_copy = options.copy && options.copy->memory;
    if (is_copy) {
        out->copy = options.copy->memory;
        out->pinned_piece = options.copy->pinned_piece;
    }
    Source& source = out->source;
    SH_TRY(open_source(from, &source));
    if (from.kind == SH_SOURCE_DEVICE) {
        SH_TRY(check_reachable(device, source));
        out->route = Route::straight;
    }
    uint32_t pinned = 0;
    if (from.kind == SH_SOURCE_POINTER && (!source.packed || device.unpacks())) {
        if (options.pin && !is_copy)
            *out_pin_failure = pin_foreign(device, source.pointer, source.place_bytes(), &out->pinned_piece);
        SH_TRY(device.host_is_pinned(from.pointer, source.place_bytes(), &pinned));
        if (pinned && !source.packed) out->route = Route::straight;
    }
    if (source.packed && device.unpacks()) out->route = packed_route(source, pinned, is_copy, options.staged_bytes);
    return Status();
}

void close_segment(BackendDevice& device, Segment* segment) {
    if (segment->pinned_piece && !segment->copy)
        unpin_foreign(device, segment->source.pointer, segment->source.place_bytes(), segment->pinned_piece);
    close_source(&segment->source);
    segment->copy.reset();
}

Status join_segments(BackendDevice& device, std::span<Segment> segments) {
    for (size_t i = 1; i < segments.size(); i++) {
        const Segment& before = segments[i - 1];
        Segment& segment = segments[i];
        if (!continues(before, segment)) continue;
        uint32_t pinned = device.has(SH_BACKEND_CONTENTLESS);
        if (!pinned) SH_TRY(device.host_is_pinned(before.source.pointer, before.bytes + segment.bytes, &pinned));
        segment.joined = pinned;
    }
    return Status();
}

}  // namespace stagehand::transfer
