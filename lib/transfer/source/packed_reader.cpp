#include "transfer/source/packed_reader.h"

#include <algorithm>
#include <span>
#include <string>

#include "base/plain_format.h"
#include "transfer/source/open_file.h"

namespace stagehand::transfer {
namespace {

// The packed tensor itself, as a source.
Source plain(const Source& source) {
    Source bytes = source;
    bytes.packed = nullptr;
    bytes.bytes = source.packed_bytes;
    return bytes;
}

// Where the packed tensor is, for messages.
std::string place_text(const Source& source) {
    char name[512];
    if (source.kind == SH_SOURCE_FILE)
        return std::string(file_name(source.file, name, sizeof name)) + ", packed tensor at byte " +
               std::to_string(source.file_offset);
    plain_format(name, sizeof name, "packed tensor at %p", source.pointer);
    return name;
}

// What a chunk says that is not as it was packed.
Status damage(const Source& source, const Status& status) {
    if (status.code() != SH_ERROR_INVALID_ARGUMENT) return status;
    return Status(SH_ERROR_SOURCE, place_text(source) + ": " + status.text());
}

std::span<const uint8_t> as_bytes(const char* at, uint64_t bytes) {
    return {reinterpret_cast<const uint8_t*>(at), bytes};
}

}  // namespace

Status read_index(const Source& source, codec::FrameIndex* out) {
    const Source frame = plain(source);
    Reader reader;
    std::vector<char> head(std::min<uint64_t>(codec::kFrameHeaderBytes, frame.bytes));
    const ReadRequest header = {&frame, 0, head.data(), head.size()};
    SH_TRY(reader.read({&header, 1}));
    uint64_t bytes = 0;
    SH_TRY(codec::FrameIndex::head_bytes(as_bytes(head.data(), head.size()), frame.bytes, &bytes));
    head.resize(bytes);
    const ReadRequest all = {&frame, 0, head.data(), bytes};
    SH_TRY(reader.read({&all, 1}));
    return codec::FrameIndex::open(as_bytes(head.data(), bytes), frame.bytes, out);
}

Status read_chunks(Reader& reader, const Source& source, uint64_t chunk, uint64_t count, char* to) {
    const codec::FrameIndex& index = *source.packed;
    const uint64_t begin = index.begin_of(chunk);
    const Source frame = plain(source);
    const ReadRequest all = {&frame, begin, to, index.begin_of(chunk + count) - begin};
    SH_TRY(reader.read({&all, 1}));
    codec::Tiles tiles;
    for (uint64_t i = chunk; i < chunk + count; i++) {
        if (source.compared[i].load(std::memory_order_relaxed)) continue;
        const uint64_t at = index.begin_of(i);
        SH_TRY(damage(source, index.find_tiles(i, as_bytes(to + (at - begin), index.begin_of(i + 1) - at), &tiles)));
        source.compared[i].store(true, std::memory_order_relaxed);
    }
    return Status();
}

Status PackedReader::read(const ReadRequest& request, const ReadPlain& read_plain) {
    const Source& source = *request.source;
    const codec::FrameIndex& index = *source.packed;
    const uint64_t offset = source.packed_offset + request.offset, whole = index.chunk_bytes();
    const uint64_t begin = index.begin_of(offset / whole);
    const uint64_t packed_bytes = index.begin_of((offset + request.bytes - 1) / whole + 1) - begin;
    const char* packed = static_cast<const char*>(source.pointer) + begin;
    if (source.kind != SH_SOURCE_POINTER) {
        const Source frame = plain(source);
        packed_.resize(packed_bytes);
        packed = packed_.data();
        SH_TRY(read_plain({&frame, begin, packed_.data(), packed_bytes}));
    }
    const Status status =
        index.unpack_range(offset, request.bytes, request.to, [&](uint64_t chunk, std::span<const uint8_t>* out) {
            const uint64_t place = index.begin_of(chunk);
            *out = as_bytes(packed + (place - begin), index.begin_of(chunk + 1) - place);
            return Status();
        });
    return damage(source, status);
}

}  // namespace stagehand::transfer
