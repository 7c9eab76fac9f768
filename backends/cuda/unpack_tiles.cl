// Unpacks the tiles that pack.cl has written to host memory. make_programs.py compiles it.
// A tile takes a few trips over the link, and the GPU has little to do meanwhile. So a group of threads has several at
// once: many groups would lie on many processors, where programs that need whole ones could not begin.
#define AT_ONCE 4
#include "unpack_tile.clh"

// Unpacks all tiles, by any number of groups of threads.
#define UNPACK_TILES(name, mantissa_bits, exponent_bits, element_bytes)                                                \
    kernel void name(global const uchar* bodies, global const uchar* headers, ulong elements, global uchar* to) {       \
        local uint sums[AT_ONCE][LANES / WARP];                                                                        \
        const struct format format = {mantissa_bits, exponent_bits, element_bytes};                                    \
        const ulong tiles = (elements + TILE_ELEMENTS - 1) / TILE_ELEMENTS;                                            \
        const uint groups = __nvvm_read_ptx_sreg_nctaid_x() * AT_ONCE, own = tile_of_group();                          \
        for (ulong index = __nvvm_read_ptx_sreg_ctaid_x() * AT_ONCE + own; index < tiles; index += groups) {           \
            const ulong left = elements - index * TILE_ELEMENTS;                                                       \
            struct tile tile;                                                                                          \
            tile.header = headers + index * TILE_HEADER;                                                               \
            tile.body = bodies + index * TILE_ELEMENTS * element_bytes;                                                \
            tile.size = 0;                                                                                             \
            tile.elements = left < TILE_ELEMENTS ? left : TILE_ELEMENTS;                                               \
            unpack(format, tile, to + index * TILE_ELEMENTS * element_bytes, sums[own]);                               \
            meet();                                                                                                    \
        }                                                                                                              \
    }
UNPACK_TILES(sh_unpack_tiles_bf16, 7, 8, 2)
UNPACK_TILES(sh_unpack_tiles_f16, 10, 5, 2)
UNPACK_TILES(sh_unpack_tiles_f32, 23, 8, 4)
UNPACK_TILES(sh_unpack_tiles_f8_e4m3, 3, 4, 1)
UNPACK_TILES(sh_unpack_tiles_f8_e5m2, 2, 5, 1)
