// Chunks: up to 32 neighbouring tiles. A chunk can be unpacked without the rest of its frame, so a device unpacks it as
// soon as it is there.
//
//   64 bytes: the size of each tile in units of 16 bytes (2), 0 for tiles that are not there
//   tiles
//
// All tiles but the last one of a tensor are whole.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "codec/float_format.h"
#include "codec/tile.h"

namespace stagehand::codec {

inline constexpr uint32_t kChunkTiles = 32;
inline constexpr uint32_t kChunkElements = kChunkTiles * kTileElements;
inline constexpr uint32_t kChunkHeaderBytes = kChunkTiles * 2;

// The most bytes that pack_chunk() writes for `elements`, from 1 to kChunkElements.
uint64_t largest_chunk_bytes(FloatFormat format, uint32_t elements);
// And the fewest.
uint64_t smallest_chunk_bytes(FloatFormat format, uint32_t elements);

// Packs elements, and returns the number of bytes of the chunk, a multiple of kTileAlignment.
uint64_t pack_chunk(FloatFormat format, const void* from, uint32_t elements, uint8_t* to);

// The tiles of a chunk. A tile that is not there is empty.
using Tiles = std::array<std::span<const uint8_t>, kChunkTiles>;
// False if it is not a chunk of that many elements. The tiles may be wrong inside.
bool find_tiles(std::span<const uint8_t> chunk, uint32_t elements, Tiles* out);

// Elements of a tile of such a chunk.
constexpr uint32_t elements_of_tile(uint32_t elements, uint32_t tile) {
    const uint32_t before = tile * kTileElements;
    return elements - before < kTileElements ? elements - before : kTileElements;
}

// Unpacks all tiles. False if a tile is not as it was packed; `to` has any contents then. Reads and writes within
// bounds whatever the chunk holds.
bool unpack_chunk(FloatFormat format, std::span<const uint8_t> chunk, uint32_t elements, void* to);

}  // namespace stagehand::codec
