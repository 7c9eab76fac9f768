#include "codec/chunk.h"

#include <cstring>

namespace stagehand::codec {
namespace {

constexpr uint32_t tiles_of(uint32_t elements) { return (elements + kTileElements - 1) / kTileElements; }

template <class BytesOfTile>
uint64_t chunk_bytes(FloatFormat format, uint32_t elements, BytesOfTile&& bytes_of_tile) {
    const uint32_t whole = elements / kTileElements, rest = elements % kTileElements;
    return kChunkHeaderBytes + whole * bytes_of_tile(format, kTileElements) + (rest ? bytes_of_tile(format, rest) : 0);
}

}  // namespace

uint64_t largest_chunk_bytes(FloatFormat format, uint32_t elements) {
    return chunk_bytes(format, elements, largest_tile_bytes);
}

uint64_t smallest_chunk_bytes(FloatFormat format, uint32_t elements) {
    return chunk_bytes(format, elements, smallest_tile_bytes);
}

uint64_t pack_chunk(FloatFormat format, const void* from, uint32_t elements, uint8_t* to) {
    const uint64_t tile_bytes = uint64_t(kTileElements) * fields_of(format).bytes();
    std::array<uint16_t, kChunkTiles> sizes = {};
    uint64_t bytes = kChunkHeaderBytes;
    for (uint32_t i = 0; i < tiles_of(elements); i++) {
        const uint8_t* const tile = static_cast<const uint8_t*>(from) + i * tile_bytes;
        const uint64_t size = pack_tile(format, tile, elements_of_tile(elements, i), to + bytes);
        sizes[i] = static_cast<uint16_t>(size / kTileAlignment);
        bytes += size;
    }
    std::memcpy(to, sizes.data(), kChunkHeaderBytes);
    return bytes;
}

bool find_tiles(std::span<const uint8_t> chunk, uint32_t elements, Tiles* out) {
    std::array<uint16_t, kChunkTiles> sizes;
    if (chunk.size() < kChunkHeaderBytes || elements == 0 || elements > kChunkElements) return false;
    std::memcpy(sizes.data(), chunk.data(), kChunkHeaderBytes);
    uint64_t at = kChunkHeaderBytes;
    for (uint32_t i = 0; i < kChunkTiles; i++) {
        const uint64_t bytes = uint64_t(sizes[i]) * kTileAlignment;
        if ((bytes != 0) != (i < tiles_of(elements)) || bytes > chunk.size() - at) return false;
        (*out)[i] = chunk.subspan(at, bytes);
        at += bytes;
    }
    return at == chunk.size();
}

bool unpack_chunk(FloatFormat format, std::span<const uint8_t> chunk, uint32_t elements, void* to) {
    Tiles tiles;
    if (!find_tiles(chunk, elements, &tiles)) return false;
    const uint64_t tile_bytes = uint64_t(kTileElements) * fields_of(format).bytes();
    bool good = true;
    for (uint32_t i = 0; i < tiles_of(elements); i++)
        good =
            unpack_tile(format, tiles[i], elements_of_tile(elements, i), static_cast<uint8_t*>(to) + i * tile_bytes) &&
            good;
    return good;
}

}  // namespace stagehand::codec
