// Tiles apart: the tiles of a tensor (tile.h) where nobody needs to know how long the others are. The body of a tile
// lies where its elements would lie, and the headers lie one after another in memory of their own. So packed contents
// take the place of plain ones, and bodies begin where memory is fastest.
#pragma once

#include <algorithm>
#include <cstdint>

#include "codec/tile.h"

namespace stagehand::codec {

struct TilesApart {
    FloatFormat format = FloatFormat::bf16;
    uint64_t elements = 0;
    uint8_t* bodies = nullptr;
    uint8_t* headers = nullptr;
};

constexpr uint64_t bytes_of_tile(FloatFormat format) { return uint64_t(kTileElements) * fields_of(format).bytes(); }

// The room that bodies need: that of the elements, filled up.
constexpr uint64_t room_for_bodies(FloatFormat format, uint64_t elements) {
    return tile_aligned(elements * fields_of(format).bytes());
}
constexpr uint64_t room_for_headers(uint64_t elements) {
    return (elements + kTileElements - 1) / kTileElements * kTileAlignment;
}

struct TileApart {
    uint64_t offset = 0;  // of the elements, and of the body
    uint32_t elements = 0;
    uint8_t* header = nullptr;
    uint8_t* body = nullptr;
};
template <class Visit>
void each_tile(const TilesApart& tiles, Visit&& visit) {
    const uint64_t stride = bytes_of_tile(tiles.format);
    for (uint64_t tile = 0, done = 0; done < tiles.elements; tile++, done += kTileElements)
        visit(TileApart{tile * stride, static_cast<uint32_t>(std::min<uint64_t>(tiles.elements - done, kTileElements)),
                        tiles.headers + tile * kTileAlignment, tiles.bodies + tile * stride});
}

// Return the bytes of the tiles. What is no tile unpacks to any contents.
uint64_t pack_tiles(const TilesApart& tiles, const void* from);
uint64_t unpack_tiles(const TilesApart& tiles, void* to);

}  // namespace stagehand::codec
