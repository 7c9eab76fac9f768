// Packs elements into tiles apart (lib/codec/tiles_apart.h), by 256 threads for each tile. make_programs.py compiles it.
//
// A thread has a word of each plane, which is 32 elements. A tile's body is put together in local memory: writes over
// the link are fast only if neighbouring threads write neighbouring bytes.
#define AT_ONCE  // differs by format
#include "tile_threads.clh"

#define TABLE 7
#define EXPONENTS 256

struct work {
    uint sums[LANES / WARP];
    uint counts[EXPONENTS];
    uint table[2];
    uchar code_of[EXPONENTS];
};

INLINE uint most_of_warp(uint value) {
    for (uint distance = WARP / 2; distance; distance /= 2) {
        const uint other = __nvvm_shfl_sync_bfly_i32(ALL_LANES, value, distance, 0x1f);
        value = other > value ? other : value;
    }
    return value;
}

// Element `i` of the 32 of a thread, which lie in 8 words for each byte of an element.
INLINE uint element(struct format format, const uint* words, uint i) {
    const uint in_word = 4 / format.bytes;
    const uint word = words[i / in_word];
    return format.bytes == 4 ? word : word >> (i % in_word * 8 * format.bytes) & ((1u << 8 * (format.bytes & 3)) - 1);
}

INLINE uint exponent_of(struct format format, uint element) {
    return element >> format.mantissa & ((1u << format.exponent) - 1);
}

INLINE uint rest_of(struct format format, uint element) {
    return (element & ((1u << format.mantissa) - 1)) |
           element >> (format.mantissa + format.exponent) << format.mantissa;
}

// Reads the thread's 32 elements. Those beyond the end are 0.
INLINE void load(struct format format, global const uchar* from, uint first, uint elements, uint* words) {
    if (first + 32 <= elements) {
        global const uint4* const at = (global const uint4*)(from + (ulong)first * format.bytes);
#pragma unroll
        for (uint i = 0; i < 2 * format.bytes; ++i) {
            const uint4 four = at[i];
            words[4 * i] = four.x;
            words[4 * i + 1] = four.y;
            words[4 * i + 2] = four.z;
            words[4 * i + 3] = four.w;
        }
        return;
    }
#pragma unroll
    for (uint i = 0; i < 8 * format.bytes; ++i) {
        words[i] = 0;
        for (uint byte = 0; byte < 4; ++byte)
            if (first * format.bytes + 4 * i + byte < elements * format.bytes)
                words[i] |= (uint)from[(ulong)first * format.bytes + 4 * i + byte] << (8 * byte);
    }
}

INLINE uint read(struct format format, global const uchar* from, uint index) {
    if (format.bytes == 4) return ((global const uint*)from)[index];
    return format.bytes == 2 ? ((global const ushort*)from)[index] : from[index];
}

// Finds the most frequent exponents among every fourth element: their order hardly depends on the others, and threads
// wait for each other when they count the same exponent.
INLINE void choose_table(struct format format, const uint* words, uint first, uint elements, local struct work* work) {
    const uint thread = lane_of_tile(), lane = thread % WARP;
    work->counts[thread] = 0;
    work->code_of[thread] = TABLE;
    meet();
#pragma unroll
    for (uint i = 0; i < 32; i += 4)
        if (first + i < elements)
            __sync_fetch_and_add(&work->counts[exponent_of(format, element(format, words, i))], 1);
    meet();
    if (thread < WARP) {
        uint own[EXPONENTS / WARP];
#pragma unroll
        for (uint i = 0; i < EXPONENTS / WARP; ++i) {
            const uint exponent = i * WARP + lane, count = work->counts[exponent];
            own[i] = count ? count << 8 | exponent : 0;
        }
        uint low = 0, high = 0;
        for (uint place = 0; place < TABLE; ++place) {
            uint most = 0;
#pragma unroll
            for (uint i = 0; i < EXPONENTS / WARP; ++i) most = own[i] > most ? own[i] : most;
            most = most_of_warp(most);
            if (!most) break;
            const uint exponent = most & 0xff;
            if (exponent % WARP == lane) {
                work->code_of[exponent] = place;
#pragma unroll
                for (uint i = 0; i < EXPONENTS / WARP; ++i)
                    if (i == exponent / WARP) own[i] = 0;
            }
            if (place < 4)
                low |= exponent << (8 * place);
            else
                high |= exponent << (8 * (place - 4));
        }
        if (lane == 0) {
            work->table[0] = low;
            work->table[1] = high;
        }
    }
    meet();
}

INLINE void write(local const uint4* from, uint bytes, global uint4* to) {
    for (uint i = lane_of_tile(); i < bytes / 16; i += LANES) to[i] = from[i];
}

INLINE void write_raw(global const uchar* from, uint bytes, global uchar* to) {
    const uint thread = lane_of_tile();
    global uint4* const at = (global uint4*)to;
    for (uint i = thread; i < bytes / 16; i += LANES) at[i] = ((global const uint4*)from)[i];
    if (thread == 0 && bytes % 16) {
        uint last[4] = {0, 0, 0, 0};
        for (uint i = 0; i < bytes % 16; ++i) last[i / 4] |= (uint)from[bytes / 16 * 16 + i] << (i % 4 * 8);
        at[bytes / 16] = (uint4)(last[0], last[1], last[2], last[3]);
    }
}

INLINE void pack(struct format format, global const uchar* from, uint elements, global uint4* header, global uchar* to,
                 local struct work* work, local uint4* body) {
    const uint thread = lane_of_tile(), lane = thread % WARP, warp = thread / WARP, first = thread * 32;
    const uint rest_bytes = (format.mantissa + 1) / 8, rest_planes = (format.mantissa + 1) % 8;
    uint words[32];
    load(format, from, first, elements, words);
    choose_table(format, words, first, elements, work);

    uint code[3] = {0, 0, 0}, high[7] = {0, 0, 0, 0, 0, 0, 0}, low[3][8];
#pragma unroll
    for (uint i = 0; i < 24; ++i) low[i / 8][i % 8] = 0;
#pragma unroll
    for (uint i = 0; i < 32; ++i) {
        const uint value = element(format, words, i);
        const uint place = first + i < elements ? work->code_of[exponent_of(format, value)] : 0;
        const uint rest = rest_of(format, value);
#pragma unroll
        for (uint bit = 0; bit < 3; ++bit) code[bit] |= (place >> bit & 1) << i;
#pragma unroll
        for (uint bit = 0; bit < rest_planes; ++bit) high[bit] |= (rest >> (8 * rest_bytes + bit) & 1) << i;
#pragma unroll
        for (uint byte = 0; byte < rest_bytes; ++byte)
            low[byte][i / 4] |= (rest >> (8 * byte) & 0xff) << (i % 4 * 8);
    }
    const uint escaped = code[0] & code[1] & code[2];
    const uint inside = sum_up_to(__builtin_popcount(escaped), lane);
    if (lane == WARP - 1) work->sums[warp] = inside;
    meet();
    uint before = inside - __builtin_popcount(escaped), escapes = 0;
    for (uint i = 0; i < LANES / WARP; ++i) {
        before += i < warp ? work->sums[i] : 0;
        escapes += work->sums[i];
    }
    const uint all = (elements + 31) & ~31u, plane = all / 8, raw_bytes = elements * format.bytes;
    const uint coded = plane * (3 + rest_planes) + all * rest_bytes, size = aligned(coded + escapes);
    if ((TILE_HEADER + size) * 20 > (TILE_HEADER + aligned(raw_bytes)) * 19) {
        if (thread == 0) *header = (uint4)(0, 0, 0, 0);
        write_raw(from, raw_bytes, to);
        return;
    }
    local uchar* const bytes = (local uchar*)body;
    if (thread == 0) *header = (uint4)(work->table[0], work->table[1] | 1u << 24, escapes, 0);
    if (thread < 4)  // zeros up to the end
        for (uint i = coded + escapes + thread; i < size; i += 4) bytes[i] = 0;
    if (thread < all / 32) {
        local uint* at = (local uint*)bytes + thread;
#pragma unroll
        for (uint i = 0; i < 3; ++i) at[i * (plane / 4)] = code[i];
#pragma unroll
        for (uint i = 0; i < rest_planes; ++i) at[(3 + i) * (plane / 4)] = high[i];
        local uchar* const rests = bytes + plane * (3 + rest_planes);
#pragma unroll
        for (uint byte = 0; byte < rest_bytes; ++byte)
#pragma unroll
            for (uint i = 0; i < 8; ++i) ((local uint*)(rests + byte * all + first))[i] = low[byte][i];
        local uchar* other = rests + all * rest_bytes + before;
        for (uint left = escaped; left; left &= left - 1)  // few, so they are read again
            *other++ = exponent_of(format, read(format, from, first + __builtin_ctz(left)));
    }
    meet();
    write(body, size, (global uint4*)to);
}

// Packs all tiles, by any number of groups of threads. Groups of several tiles lie on fewer processors: others need
// whole ones.
#define PACK(name, mantissa_bits, exponent_bits, element_bytes, at_once)                                               \
    kernel void name(global const uchar* from, ulong elements, global uchar* bodies, global uint4* headers) {          \
        local struct work work[at_once];                                                                               \
        local uint4 body[at_once][TILE_ELEMENTS * element_bytes / 16];                                                 \
        const struct format format = {mantissa_bits, exponent_bits, element_bytes};                                    \
        const ulong tiles = (elements + TILE_ELEMENTS - 1) / TILE_ELEMENTS;                                            \
        const uint groups = __nvvm_read_ptx_sreg_nctaid_x() * at_once, own = tile_of_group();                          \
        for (ulong index = __nvvm_read_ptx_sreg_ctaid_x() * at_once + own; index < tiles; index += groups) {           \
            const ulong left = elements - index * TILE_ELEMENTS;                                                       \
            pack(format, from + index * TILE_ELEMENTS * element_bytes, left < TILE_ELEMENTS ? left : TILE_ELEMENTS,    \
                 headers + index, bodies + index * TILE_ELEMENTS * element_bytes, &work[own], body[own]);              \
            meet(); /* the local memory is that of the next tile from here on */                                       \
        }                                                                                                              \
    }
PACK(sh_pack_bf16, 7, 8, 2, 2)
PACK(sh_pack_f16, 10, 5, 2, 2)
PACK(sh_pack_f32, 23, 8, 4, 1)
PACK(sh_pack_f8_e4m3, 3, 4, 1, 2)
PACK(sh_pack_f8_e5m2, 2, 5, 1, 2)
