#include "transfer/source/source.h"

#include <climits>
#include <memory>
#include <string>

#include "base/no_throw.h"
#include "codec/frame_index.h"
#include "transfer/source/open_file.h"
#include "transfer/source/packed_reader.h"

namespace stagehand::transfer {
namespace {

Status wrong(const char* field, const std::string& why) {
    return Status(SH_ERROR_INVALID_ARGUMENT, std::string(field) + " " + why);
}

Status open_memory(const sh_segment& segment, Source* source) {
    if (!segment.pointer && segment.bytes > 0) return wrong("pointer", "is NULL");
    if (reinterpret_cast<uint64_t>(segment.pointer) > UINT64_MAX - segment.bytes)
        return wrong("bytes", "reach past the end of the address space: " + std::to_string(segment.bytes));
    source->pointer = writable(segment.pointer);
    return Status();
}

Status open_range(const sh_segment& segment, Source* source) {
    if (segment.file < 0 || segment.file > INT_MAX)
        return wrong("file", "is not a file descriptor: " + std::to_string(segment.file));
    if (segment.bytes > static_cast<uint64_t>(INT64_MAX) ||
        segment.file_offset > static_cast<uint64_t>(INT64_MAX) - segment.bytes) {
        return wrong("file_offset", std::to_string(segment.file_offset) + " and bytes " +
                                        std::to_string(segment.bytes) + " reach past the end of any file");
    }
    SH_TRY(open_file(static_cast<int>(segment.file), &source->opened));
    source->file = source->opened->file.number();
    source->direct_file = source->opened->direct_file.number();
    source->file_offset = segment.file_offset;
    return Status();
}

Status open_by_kind(const sh_segment& segment, Source* source) {
    switch (segment.kind) {
        case SH_SOURCE_POINTER:
        case SH_SOURCE_MAPPED:
        case SH_SOURCE_DEVICE:
            return open_memory(segment, source);
        case SH_SOURCE_FILE:
            return open_range(segment, source);
        case SH_SOURCE_FILL:
            if (!segment.fill) return wrong("fill", "is NULL");
            source->fill = segment.fill;
            source->user_data = segment.user_data;
            source->file_offset = segment.file_offset;
            return Status();
        default:
            return wrong("kind", "is not an SH_SOURCE_* value: " + std::to_string(segment.kind));
    }
}

Status open_packed(const sh_segment& segment, Source* source) {
    auto index = std::make_unique<codec::FrameIndex>();
    source->packed_bytes = segment.packed_bytes;
    source->packed_offset = segment.packed_offset;
    SH_TRY(read_index(*source, index.get()));
    if (segment.packed_offset > index->contents_bytes() ||
        segment.bytes > index->contents_bytes() - segment.packed_offset)
        return wrong("packed_offset", std::to_string(segment.packed_offset) + " and bytes " +
                                          std::to_string(segment.bytes) + " reach past the " +
                                          std::to_string(index->contents_bytes()) + " bytes of the packed tensor");
    source->compared = new std::atomic<bool>[index->chunks()]();
    source->packed = index.release();
    return Status();
}

}  // namespace

Status open_source(const sh_segment& segment, Source* out_source) {
    Source source;
    Status status = no_throw([&] {
        source.kind = segment.kind;
        source.bytes = segment.bytes;
        sh_segment place = segment;  // of the packed tensor, if it is one
        if (segment.packed_bytes) place.bytes = segment.packed_bytes;
        SH_TRY(open_by_kind(place, &source));
        return segment.packed_bytes ? open_packed(segment, &source) : Status();
    });
    if (status.ok())
        *out_source = source;
    else
        close_source(&source);
    return status;
}

void close_source(Source* source) {
    if (source->opened) close_file(source->opened);
    delete source->packed;
    delete[] source->compared;
    *source = Source();
}

}  // namespace stagehand::transfer
