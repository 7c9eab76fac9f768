// Unpacks the chunks of lib/codec/chunk.h. make_programs.py compiles it.
#include "unpack_tile.clh"

#define CHUNK_TILES 32
#define CHUNK_HEADER 64
#define MOST_CHUNKS 128

// Of each chunk and of the end, in units of 16 bytes.
struct places {
    uint at[MOST_CHUNKS + 1];
};

// Finds a tile by the sizes in the header of its chunk. False if the sizes are not those of this chunk.
INLINE bool find(global const uchar* chunk, ulong bytes, uint index, bool last, struct tile* tile) {
    const uint lane = __nvvm_read_ptx_sreg_tid_x() % WARP;
    if (bytes < CHUNK_HEADER) return false;
    const uint size = ((global const ushort*)chunk)[lane];
    const uint up_to = sum_up_to(size, lane), all = from_lane(up_to, CHUNK_TILES - 1);
    const uint end = from_lane(up_to, index), own = from_lane(size, index);
    tile->header = chunk + CHUNK_HEADER + (ulong)(end - own) * 16;
    tile->body = tile->header + TILE_HEADER;
    tile->size = own * 16;
    return own != 0 && CHUNK_HEADER + (ulong)all * 16 == bytes && (!last || end == all);
}

// Unpacks all tiles of the chunks, by any number of groups of threads. `failed` becomes 1 if a tile is not as it was
// packed.
#define UNPACK(name, mantissa_bits, exponent_bits, element_bytes)                                                      \
    kernel void name(global const uchar* from, struct places places, ulong elements, global uchar* to,                 \
                     global uint* failed) {                                                                            \
        local uint sums[LANES / WARP];                                                                                 \
        const struct format format = {mantissa_bits, exponent_bits, element_bytes};                                    \
        const uint tiles = (elements + TILE_ELEMENTS - 1) / TILE_ELEMENTS;                                             \
        const uint groups = __nvvm_read_ptx_sreg_nctaid_x();                                                           \
        for (uint index = __nvvm_read_ptx_sreg_ctaid_x(); index < tiles; index += groups) {                            \
            const uint chunk = index / CHUNK_TILES;                                                                    \
            const ulong at = (ulong)places.at[chunk] * 16, end = (ulong)places.at[chunk + 1] * 16;                     \
            const ulong left = elements - (ulong)index * TILE_ELEMENTS;                                                \
            struct tile tile;                                                                                          \
            tile.elements = left < TILE_ELEMENTS ? left : TILE_ELEMENTS;                                               \
            const bool good = find(from + at, end - at, index % CHUNK_TILES, index + 1 == tiles, &tile) &&             \
                              unpack(format, tile, to + (ulong)index * TILE_ELEMENTS * element_bytes, sums);           \
            if (!good && failed && __nvvm_read_ptx_sreg_tid_x() == 0) *failed = 1;                                     \
            __syncthreads(); /* the sums are those of the next tile from here on */                                    \
        }                                                                                                              \
    }
UNPACK(sh_unpack_bf16, 7, 8, 2)
UNPACK(sh_unpack_f16, 10, 5, 2)
UNPACK(sh_unpack_f32, 23, 8, 4)
UNPACK(sh_unpack_f8_e4m3, 3, 4, 1)
UNPACK(sh_unpack_f8_e5m2, 2, 5, 1)
