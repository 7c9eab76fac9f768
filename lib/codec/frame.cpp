#include "codec/frame.h"

#include <new>

#include "codec/chunk.h"
#include "codec/packer.h"
#include "codec/tile.h"

namespace stagehand::codec {
namespace {

constexpr uint64_t tile_size(FloatFormat format) { return uint64_t(kTileElements) * fields_of(format).bytes(); }

}  // namespace

Status pack_frame(FloatFormat format, const void* from, uint64_t bytes, uint32_t threads, std::vector<uint8_t>* out) {
    Packer packer;
    SH_TRY(packer.pack(format, from, bytes, threads));
    try {
        out->resize(packer.frame_bytes());
    } catch (const std::bad_alloc&) {
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY, "no memory for a packed tensor");
    }
    packer.write(out->data(), threads);
    return Status();
}

Status Frame::open(std::span<const uint8_t> bytes, Frame* out) {
    SH_TRY(FrameIndex::open(bytes, bytes.size(), &out->index_));
    out->bytes_ = bytes;
    return Status();
}

std::span<const uint8_t> Frame::chunk(uint64_t index) const {
    return bytes_.subspan(index_.begin_of(index), index_.begin_of(index + 1) - index_.begin_of(index));
}

uint64_t Frame::tiles() const { return (contents_bytes() + tile_size(format()) - 1) / tile_size(format()); }

uint64_t Frame::raw_tiles() const {
    uint64_t count = 0;
    for (uint64_t i = 0; i < chunks(); i++) {
        Tiles tiles;
        if (!find_tiles(chunk(i), index_.elements_of(i), &tiles)) continue;
        for (const std::span<const uint8_t> tile : tiles) count += !tile.empty() && is_raw_tile(tile);
    }
    return count;
}

Status Frame::unpack(uint64_t offset, uint64_t bytes, void* to) const {
    if (offset > contents_bytes() || bytes > contents_bytes() - offset)
        return Status(SH_ERROR_INVALID_ARGUMENT, "the range ends behind the contents of the packed tensor");
    return index_.unpack_range(offset, bytes, to, [this](uint64_t number, std::span<const uint8_t>* out) {
        *out = chunk(number);
        return Status();
    });
}

}  // namespace stagehand::codec
