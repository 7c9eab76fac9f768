#include "codec/tiles_apart.h"

namespace stagehand::codec {

uint64_t pack_tiles(const TilesApart& tiles, const void* from) {
    uint64_t bytes = 0;
    each_tile(tiles, [&](const TileApart& tile) {
        bytes += kTileAlignment + pack_tile(tiles.format, static_cast<const uint8_t*>(from) + tile.offset,
                                            tile.elements, tile.header, tile.body);
    });
    return bytes;
}

uint64_t unpack_tiles(const TilesApart& tiles, void* to) {
    uint64_t bytes = 0;
    each_tile(tiles, [&](const TileApart& tile) {
        const uint64_t body = body_bytes(tiles.format, tile.header, tile.elements);
        (void)unpack_tile(tiles.format, tile.header, {tile.body, body}, tile.elements,
                          static_cast<uint8_t*>(to) + tile.offset);
        bytes += kTileAlignment + body;
    });
    return bytes;
}

}  // namespace stagehand::codec
