// Unpacks the chunks of lib/codec/chunk.h, by 256 threads for each tile. make_programs.py compiles it.
//
// A thread has a word of each plane, which is 32 elements. The elements are written in groups of eight neighbours, so
// that neighbouring threads write neighbouring bytes: a group's bits come from the thread that has their word.
// The formats are constants only where everything is one function.
#define INLINE static inline __attribute__((always_inline))
#define LANES 256
#define WARP 32
#define ALL_LANES 0xffffffffu
#define CHUNK_TILES 32
#define CHUNK_HEADER 64
#define MOST_CHUNKS 128
#define TILE_ELEMENTS 8192
#define TILE_HEADER 16

struct tile {
    global const uchar* bytes;
    uint size;      // bytes
    uint elements;
};

// A format's elements: the mantissa, the exponent and the sign, from the lowest bit on.
struct format {
    uint mantissa, exponent, bytes;
};

INLINE uint aligned(uint bytes) { return (bytes + 15) & ~15u; }

INLINE uint from_lane(uint value, uint lane) { return __nvvm_shfl_sync_idx_i32(ALL_LANES, value, lane, 0x1f); }

// The sum over the lanes of the warp up to this one.
INLINE uint sum_up_to(uint value, uint lane) {
    for (uint distance = 1; distance < WARP; distance *= 2) {
        const uint before = __nvvm_shfl_sync_up_i32(ALL_LANES, value, distance, 0);
        value += lane >= distance ? before : 0;
    }
    return value;
}

INLINE void copy_raw(struct tile tile, uint bytes, global uchar* to, uint thread) {
    global const uint4* from = (global const uint4*)(tile.bytes + TILE_HEADER);
    for (uint i = thread; i < bytes / 16; i += LANES) ((global uint4*)to)[i] = from[i];
    for (uint i = bytes / 16 * 16 + thread; i < bytes; i += LANES) to[i] = tile.bytes[TILE_HEADER + i];
}

// Eight bytes that are aligned to four, or to eight if the tile is whole.
INLINE ulong load_eight(global const uchar* from, bool whole) {
    if (whole) return *(global const ulong*)from;
    return ((global const uint*)from)[0] | (ulong)((global const uint*)from)[1] << 32;
}

INLINE uint join(struct format format, uint exponent, uint rest) {
    const uint mask = (1u << format.mantissa) - 1;
    return (rest & mask) | exponent << format.mantissa | rest >> format.mantissa << (format.mantissa + format.exponent);
}

INLINE void store(struct format format, const uint* words, uint first, uint elements, global uchar* to) {
    global uchar* at = to + (ulong)first * format.bytes;
    if (first + 8 > elements) {
        for (uint i = 0; i < 8; ++i)
            for (uint byte = 0; byte < format.bytes; ++byte)
                if (first + i < elements) at[i * format.bytes + byte] = words[i] >> (8 * byte);
    } else if (format.bytes == 4) {
        ((global uint4*)at)[0] = (uint4)(words[0], words[1], words[2], words[3]);
        ((global uint4*)at)[1] = (uint4)(words[4], words[5], words[6], words[7]);
    } else if (format.bytes == 2) {
        *(global uint4*)at = (uint4)(words[0] | words[1] << 16, words[2] | words[3] << 16, words[4] | words[5] << 16,
                                     words[6] | words[7] << 16);
    } else {
        *(global uint2*)at = (uint2)(words[0] | words[1] << 8 | words[2] << 16 | words[3] << 24,
                                     words[4] | words[5] << 8 | words[6] << 16 | words[7] << 24);
    }
}

// Returns whether the tile is as it was packed. Reads and writes within its bounds in any case.
INLINE bool unpack(struct format format, struct tile tile, global uchar* to, local uint* sums) {
    const uint thread = __nvvm_read_ptx_sreg_tid_x(), lane = thread % WARP, warp = thread / WARP;
    const uint rest_bytes = (format.mantissa + 1) / 8, rest_planes = (format.mantissa + 1) % 8;
    const uint4 header = *(global const uint4*)tile.bytes;
    const uint kind = header.y >> 24, escapes = header.z;
    const ulong table = header.x | (ulong)(header.y & 0xffffff) << 32;
    const uint raw_bytes = tile.elements * format.bytes;
    if (header.w != 0 || kind > 1 || escapes > tile.elements) return false;
    if (kind == 0) {
        if (escapes || tile.size != TILE_HEADER + aligned(raw_bytes)) return false;
        copy_raw(tile, raw_bytes, to, thread);
        return true;
    }
    const uint all = (tile.elements + 31) & ~31u, plane = all / 8;
    if (tile.size != TILE_HEADER + aligned(plane * (3 + rest_planes) + all * rest_bytes + escapes)) return false;

    global const uchar* const planes = tile.bytes + TILE_HEADER;
    uint code[3] = {0, 0, 0}, high[7] = {0, 0, 0, 0, 0, 0, 0};
    if (thread < all / 32) {
#pragma unroll
        for (uint i = 0; i < 3; ++i) code[i] = ((global const uint*)(planes + i * plane))[thread];
#pragma unroll
        for (uint i = 0; i < rest_planes; ++i) high[i] = ((global const uint*)(planes + (3 + i) * plane))[thread];
    }
    const uint escaped = code[0] & code[1] & code[2];
    const uint inside = sum_up_to(__builtin_popcount(escaped), lane);
    if (lane == WARP - 1) sums[warp] = inside;
    __syncthreads();
    uint before = inside - __builtin_popcount(escaped), sum = 0;
    for (uint i = 0; i < LANES / WARP; ++i) {
        before += i < warp ? sums[i] : 0;
        sum += sums[i];
    }
    if (sum != escapes) return false;

    global const uchar* const rests = planes + (3 + rest_planes) * plane;
    global const uchar* const others = rests + all * rest_bytes;
#pragma nounroll  // the program would be four times as long, and no faster
    for (uint k = 0; k < 4; ++k) {
        const uint source = k * 8 + lane / 4, shift = lane % 4 * 8, first = (warp * WARP + source) * 32 + shift;
        const uint a = from_lane(code[0], source) >> shift, b = from_lane(code[1], source) >> shift,
                   c = from_lane(code[2], source) >> shift;
        const uint escaped_there = from_lane(escaped, source);
        uint next = from_lane(before, source) + __builtin_popcount(escaped_there & ((1u << shift) - 1));
        uint highest[7];
#pragma unroll
        for (uint i = 0; i < rest_planes; ++i) highest[i] = from_lane(high[i], source) >> shift;
        if (first >= tile.elements) continue;
        ulong low[3];
#pragma unroll
        for (uint i = 0; i < rest_bytes; ++i) low[i] = load_eight(rests + i * all + first, all == TILE_ELEMENTS);
        const bool some_escape = (escaped_there >> shift & 0xff) != 0;
        uint words[8];
#pragma unroll
        for (uint i = 0; i < 8; ++i) {
            const uint place = (a >> i & 1) | (b >> i & 1) << 1 | (c >> i & 1) << 2;
            uint exponent = (uint)(table >> (8 * place)) & 0xff;
            if (some_escape && place == 7) exponent = others[next++];
            uint rest = 0;
#pragma unroll
            for (uint byte = 0; byte < rest_bytes; ++byte) rest |= (uint)(low[byte] >> (8 * i) & 0xff) << (8 * byte);
#pragma unroll
            for (uint bit = 0; bit < rest_planes; ++bit) rest |= (highest[bit] >> i & 1) << (8 * rest_bytes + bit);
            words[i] = join(format, exponent & ((1u << format.exponent) - 1), rest);
        }
        store(format, words, first, tile.elements, to);
    }
    return true;
}

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
    tile->bytes = chunk + CHUNK_HEADER + (ulong)(end - own) * 16;
    tile->size = own * 16;
    return own != 0 && CHUNK_HEADER + (ulong)all * 16 == bytes && (!last || end == all);
}

// Unpacks all tiles of the chunks, by any number of groups of threads. `failed` becomes 1 if a tile is not as it was
// packed.
#define UNPACK(name, mantissa_bits, exponent_bits, element_bytes)                                                     \
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
