// Frames: a whole tensor, packed without loss as a row of chunks that can be unpacked one by one.
//
//   64 bytes: "SHPK", the version (2), the format (1), 0 (1),
//             the bytes of the contents (8), the bytes of the frame (8),
//             the elements of a chunk (4), the number of chunks (4), a checksum (8), 0 (24)
//   index:    for each chunk its place, in units of 16 bytes from the beginning of the frame (4), and a checksum (4)
//   zeros up to a multiple of 16 bytes
//   chunks
//
// The checksum of the header is the XXH3 of the header and the index, with zeros in its own place. That of a chunk is
// the lower half of the XXH3 of its bytes. All numbers are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "codec/float_format.h"
#include "codec/frame_index.h"

namespace stagehand::codec {

// Packs a tensor into memory of its own: see Packer.
Status pack_frame(FloatFormat format, const void* from, uint64_t bytes, uint32_t threads, std::vector<uint8_t>* out);

// A frame that somebody else may have written. Everything is checked before it is used, and each chunk when it is
// unpacked. The bytes must outlive this object.
class Frame {
public:
    Frame() = default;

    // An error if the bytes are not a frame, or not a whole one.
    static Status open(std::span<const uint8_t> bytes, Frame* out);

    const FrameIndex& index() const { return index_; }
    FloatFormat format() const { return index_.format(); }
    uint64_t contents_bytes() const { return index_.contents_bytes(); }
    uint64_t tiles() const;
    uint32_t chunks() const { return index_.chunks(); }
    // A chunk as it is in the frame, which is not checked yet.
    std::span<const uint8_t> chunk(uint64_t index) const;
    // Tiles that keep their elements as they are.
    uint64_t raw_tiles() const;

    // Unpacks a range of the contents. An error if it is not in the contents, or if a chunk is not as it was packed.
    // Any thread may call it.
    Status unpack(uint64_t offset, uint64_t bytes, void* to) const;

private:
    std::span<const uint8_t> bytes_;
    FrameIndex index_;
};

}  // namespace stagehand::codec
