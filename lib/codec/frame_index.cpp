#include "codec/frame_index.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <string>

#include "codec/checksum.h"

namespace stagehand::codec {
namespace {

Status refused(const std::string& why) { return Status(SH_ERROR_INVALID_ARGUMENT, "not a packed tensor: " + why); }
Status contradicts(uint64_t chunk) { return refused("chunk " + std::to_string(chunk) + " contradicts itself"); }

Status read_header(std::span<const uint8_t> bytes, uint64_t frame_bytes, FrameHeader* out) {
    const std::string why = read_frame_header(bytes, frame_bytes, out);
    return why.empty() ? Status() : refused(why);
}

}  // namespace

uint32_t chunk_checksum(std::span<const uint8_t> chunk) {
    return static_cast<uint32_t>(checksum(chunk.data(), chunk.size()));
}

uint64_t frame_head_bytes(FloatFormat format, uint64_t contents_bytes) {
    return head_end(chunks_of(format, contents_bytes));
}

std::vector<uint8_t> frame_head(FloatFormat format, uint64_t contents_bytes, std::span<const Place> places,
                                uint64_t frame_bytes) {
    std::vector<uint8_t> head(head_end(places.size()));
    FrameHeader header = {};
    std::memcpy(header.magic, kFrameMagic, sizeof kFrameMagic);
    header.version = kFrameVersion;
    header.format = static_cast<uint8_t>(format);
    header.contents_bytes = contents_bytes;
    header.frame_bytes = frame_bytes;
    header.chunk_elements = kChunkElements;
    header.chunks = static_cast<uint32_t>(places.size());
    std::memcpy(head.data(), &header, sizeof header);
    if (!places.empty()) std::memcpy(head.data() + sizeof header, places.data(), places.size_bytes());
    header.checksum = checksum(head.data(), head.size());
    std::memcpy(head.data(), &header, sizeof header);
    return head;
}

Status FrameIndex::head_bytes(std::span<const uint8_t> bytes, uint64_t frame_bytes, uint64_t* out) {
    FrameHeader header;
    SH_TRY(read_header(bytes, frame_bytes, &header));
    *out = head_end(header.chunks);
    return Status();
}

Status FrameIndex::open(std::span<const uint8_t> bytes, uint64_t frame_bytes, FrameIndex* out) {
    FrameHeader header;
    SH_TRY(read_header(bytes, frame_bytes, &header));
    const uint64_t begin = head_end(header.chunks);
    if (begin > bytes.size()) return refused("its index is not whole");
    FrameIndex index;
    try {
        std::vector<uint8_t> checked(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(begin));
        std::memset(checked.data() + offsetof(FrameHeader, checksum), 0, sizeof header.checksum);
        if (checksum(checked.data(), checked.size()) != header.checksum) return refused("its checksum is another one");
        index.places_.resize(header.chunks);
    } catch (const std::bad_alloc&) {
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY, "no memory for the index of a packed tensor");
    }
    if (header.chunks) std::memcpy(index.places_.data(), bytes.data() + sizeof header, header.chunks * sizeof(Place));
    index.format_ = *format_of(header.format);
    index.contents_bytes_ = header.contents_bytes;
    index.frame_bytes_ = frame_bytes;
    SH_TRY(index.check_chunks(begin));
    *out = std::move(index);
    return Status();
}

// Every chunk has a size that a chunk can have. So the contents are never much larger than the frame.
Status FrameIndex::check_chunks(uint64_t begin) const {
    if (begin_of(0) != begin) return refused("its chunks do not follow each other");
    for (uint64_t i = 0; i < places_.size(); i++) {
        const uint32_t elements = elements_of(i);
        const uint64_t at = begin_of(i), end = begin_of(i + 1);
        if (end < at || end > frame_bytes_ || end - at < smallest_chunk_bytes(format_, elements) ||
            end - at > largest_chunk_bytes(format_, elements))
            return refused("chunk " + std::to_string(i) + " has a size that no chunk has");
    }
    return Status();
}

uint32_t FrameIndex::elements_of(uint64_t chunk) const {
    const uint64_t elements = contents_bytes_ / fields_of(format_).bytes();
    return static_cast<uint32_t>(std::min<uint64_t>(elements - chunk * kChunkElements, kChunkElements));
}

Status FrameIndex::find_tiles(uint64_t chunk, std::span<const uint8_t> bytes, Tiles* out) const {
    if (bytes.size() != begin_of(chunk + 1) - begin_of(chunk) || chunk_checksum(bytes) != places_[chunk].checksum)
        return refused("the checksum of chunk " + std::to_string(chunk) + " is another one");
    return codec::find_tiles(bytes, elements_of(chunk), out) ? Status() : contradicts(chunk);
}

Status FrameIndex::unpack(uint64_t chunk, std::span<const uint8_t> packed, uint64_t offset, uint64_t bytes,
                          void* to) const {
    Tiles tiles;
    SH_TRY(find_tiles(chunk, packed, &tiles));
    const uint64_t element = fields_of(format_).bytes(), tile_bytes = kTileElements * element;
    auto* next = static_cast<uint8_t*>(to);
    std::vector<uint8_t> whole;  // a tile of which only a part is wanted
    for (uint64_t at = offset, end = offset + bytes; at < end;) {
        const auto tile = static_cast<uint32_t>(at / tile_bytes);
        const uint32_t elements = elements_of_tile(elements_of(chunk), tile);
        const uint64_t begin = tile * tile_bytes, tile_end = begin + elements * element;
        const uint64_t take = std::min(tile_end, end) - at;
        const bool partly = at != begin || take != tile_end - begin;
        try {
            if (partly) whole.resize(tile_bytes);
        } catch (const std::bad_alloc&) {
            return Status(SH_ERROR_OUT_OF_HOST_MEMORY, "no memory for a tile of a packed tensor");
        }
        if (!unpack_tile(format_, tiles[tile], elements, partly ? whole.data() : next)) return contradicts(chunk);
        if (partly) std::memcpy(next, whole.data() + (at - begin), take);
        next += take;
        at += take;
    }
    return Status();
}

}  // namespace stagehand::codec
