// The header and the index of a frame, without its chunks: where each chunk is, and what it holds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "codec/chunk.h"
#include "codec/float_format.h"
#include "codec/frame_header.h"

namespace stagehand::codec {

uint32_t chunk_checksum(std::span<const uint8_t> chunk);
// The header and the index of a frame of these chunks.
std::vector<uint8_t> frame_head(FloatFormat format, uint64_t contents_bytes, std::span<const Place> places,
                                uint64_t frame_bytes);
// Bytes of the header and the index.
uint64_t frame_head_bytes(FloatFormat format, uint64_t contents_bytes);

// Of a frame that somebody else may have written. Everything is checked before it is used, and each chunk when it is
// unpacked. Any thread may call the constant methods.
class FrameIndex {
public:
    // The bytes of the header and the index, by the first kFrameHeaderBytes of a frame. An error if it is no frame.
    static Status head_bytes(std::span<const uint8_t> header, uint64_t frame_bytes, uint64_t* out);
    // Copies what it needs. An error if these bytes are not the header and the index of a frame of `frame_bytes`.
    static Status open(std::span<const uint8_t> head, uint64_t frame_bytes, FrameIndex* out);

    FloatFormat format() const { return format_; }
    uint64_t contents_bytes() const { return contents_bytes_; }
    uint32_t chunks() const { return static_cast<uint32_t>(places_.size()); }
    // Bytes of the contents of each chunk but the last.
    uint64_t chunk_bytes() const { return uint64_t(kChunkElements) * fields_of(format_).bytes(); }
    uint32_t elements_of(uint64_t chunk) const;
    // Where a chunk begins in the frame, or where the frame ends if there is no such chunk.
    uint64_t begin_of(uint64_t chunk) const {
        return chunk < places_.size() ? uint64_t(places_[chunk].units) * kTileAlignment : frame_bytes_;
    }

    // An error if these are not the bytes of that chunk.
    Status find_tiles(uint64_t chunk, std::span<const uint8_t> bytes, Tiles* out) const;
    // Unpacks bytes [offset, offset + bytes) of the contents of a chunk, which begin with the contents of the chunk.
    Status unpack(uint64_t chunk, std::span<const uint8_t> packed, uint64_t offset, uint64_t bytes, void* to) const;

    // Unpacks a range of all contents, which must lie in them. `chunk_at(number, &bytes)` finds the bytes of a chunk.
    template <class ChunkAt>
    Status unpack_range(uint64_t offset, uint64_t bytes, void* to, ChunkAt&& chunk_at) const {
        auto* next = static_cast<uint8_t*>(to);
        for (uint64_t at = offset, end = offset + bytes; at < end;) {
            const uint64_t chunk = at / chunk_bytes(), inside = at % chunk_bytes();
            const uint64_t take = std::min(chunk_bytes() - inside, end - at);
            std::span<const uint8_t> packed;
            SH_TRY(chunk_at(chunk, &packed));
            SH_TRY(unpack(chunk, packed, inside, take, next));
            next += take;
            at += take;
        }
        return Status();
    }

private:
    Status check_chunks(uint64_t begin) const;

    FloatFormat format_ = FloatFormat::bf16;
    uint64_t contents_bytes_ = 0, frame_bytes_ = 0;
    std::vector<Place> places_;
};

}  // namespace stagehand::codec
