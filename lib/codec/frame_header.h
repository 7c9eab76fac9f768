// The first bytes of a frame, which tell what the whole tensor was. Needs nothing but headers, so that readers of model
// files have it without the codec.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "codec/chunk.h"
#include "codec/float_format.h"
#include "codec/tile.h"

namespace stagehand::codec {

inline constexpr uint32_t kFrameHeaderBytes = 64;
inline constexpr uint64_t kMostContents = uint64_t(1) << 35;  // places have 32 bits, in units of 16 bytes
inline constexpr char kFrameMagic[4] = {'S', 'H', 'P', 'K'};
inline constexpr uint16_t kFrameVersion = 2;

// How the index stands in a frame.
struct Place {
    uint32_t units;     // of 16 bytes, from the beginning of the frame
    uint32_t checksum;  // of the chunk
};
static_assert(sizeof(Place) == 8);

struct FrameHeader {
    char magic[4];
    uint16_t version;
    uint8_t format;
    uint8_t reserved;
    uint64_t contents_bytes;
    uint64_t frame_bytes;
    uint32_t chunk_elements;
    uint32_t chunks;
    uint64_t checksum;
    uint8_t zeros[24];
};
static_assert(sizeof(FrameHeader) == kFrameHeaderBytes);

// Where the index of that many chunks ends.
constexpr uint64_t head_end(uint64_t chunks) { return tile_aligned(kFrameHeaderBytes + chunks * sizeof(Place)); }

constexpr uint64_t chunks_of(FloatFormat format, uint64_t bytes) {
    const uint64_t chunk = uint64_t(kChunkElements) * fields_of(format).bytes();
    return (bytes + chunk - 1) / chunk;
}

// Reads the header at the beginning of a frame of `frame_bytes`. Returns why it is none; empty if it is one. The
// checksum, which is also that of the index, is not compared.
inline std::string read_frame_header(std::span<const uint8_t> bytes, uint64_t frame_bytes, FrameHeader* out) {
    if (bytes.size() < sizeof *out) return "it has " + std::to_string(bytes.size()) + " bytes";
    std::memcpy(out, bytes.data(), sizeof *out);
    if (std::memcmp(out->magic, kFrameMagic, sizeof kFrameMagic) != 0) return "it does not begin with \"SHPK\"";
    if (out->version != kFrameVersion) return "version " + std::to_string(out->version) + " is unknown";
    const auto format = format_of(out->format);
    if (!format) return "format " + std::to_string(out->format) + " is unknown";
    if (out->frame_bytes != frame_bytes)
        return "it has " + std::to_string(frame_bytes) + " bytes instead of " + std::to_string(out->frame_bytes);
    const uint64_t contents = out->contents_bytes;
    if (frame_bytes % kTileAlignment || contents >= kMostContents || contents % fields_of(*format).bytes() ||
        out->chunk_elements != kChunkElements || out->chunks != chunks_of(*format, contents))
        return "its sizes contradict each other";
    return head_end(out->chunks) > frame_bytes ? "its index is not whole" : "";
}

}  // namespace stagehand::codec
