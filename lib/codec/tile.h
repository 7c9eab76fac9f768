// Tiles: up to 8,192 neighbours of a tensor, packed by themselves and without loss.
//
// The weights of a model have few exponents: the seven most frequent ones of a tile make up some 98 % of it. So an
// exponent is coded in three bits, as its place in a table of seven, and the code 7 stands for all others, which follow
// one after another as bytes. Signs and mantissas are kept as they are. A fixed number of bits lets every element be
// found without those before it, but for the escapes, which a sum over the codes finds.
//
//   16 bytes: the table (7), the kind (1), the number of escapes (4), 0 (4)
//   kind 0:   the elements as they are
//   kind 1:   three planes of the codes,
//             a plane of each of the rest's highest bits that fill no byte,
//             the rest's bytes, from the lowest one on,
//             the escapes
//   zeros up to a multiple of 16 bytes
//
// Planes and bytes are filled up with zeros to a multiple of 32 elements. All numbers are little-endian.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/float_format.h"

namespace stagehand::codec {

inline constexpr uint32_t kTileElements = 8192;
inline constexpr uint32_t kTileAlignment = 16;

constexpr uint64_t tile_aligned(uint64_t bytes) {
    return (bytes + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
}

// The most bytes that pack_tile() writes for `elements`, which are at most kTileElements.
uint64_t largest_tile_bytes(FloatFormat format, uint32_t elements);
// And the fewest.
uint64_t smallest_tile_bytes(FloatFormat format, uint32_t elements);

// Packs elements, and returns the number of bytes of the tile, a multiple of kTileAlignment. Elements are kept as they
// are if packing saves less than a twentieth. `from` needs no alignment.
uint64_t pack_tile(FloatFormat format, const void* from, uint32_t elements, uint8_t* to);

// Packs into a header of kTileAlignment bytes and a body that lies apart. Returns the bytes of the body.
uint64_t pack_tile(FloatFormat format, const void* from, uint32_t elements, uint8_t* header, uint8_t* body);

// Unpacks a tile of that many elements. False if it is not such a tile; `to` has any contents then. Reads and writes
// within bounds whatever the tile holds.
bool unpack_tile(FloatFormat format, std::span<const uint8_t> tile, uint32_t elements, void* to);
// Unpacks a tile whose body lies apart.
bool unpack_tile(FloatFormat format, const uint8_t* header, std::span<const uint8_t> body, uint32_t elements, void* to);

// The bytes of the body, as the header says. Never more than the elements have, filled up to kTileAlignment.
uint64_t body_bytes(FloatFormat format, const uint8_t* header, uint32_t elements);

// Whether a tile, of which at least the header is there, keeps its elements as they are.
bool is_raw_tile(std::span<const uint8_t> tile);

}  // namespace stagehand::codec
