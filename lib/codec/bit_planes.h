// Bits of eight neighbours as one byte, and back. A plane has one bit of each element: bit i of its byte k is that of
// element 8 k + i.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace stagehand::codec {

inline constexpr uint64_t kLowBits = 0x0101010101010101;

inline uint64_t load_eight(const uint8_t* from) {
    uint64_t eight = 0;
    std::memcpy(&eight, from, sizeof eight);
    return eight;
}

// The bits `bit` of eight bytes, of which the first one has the lowest address. Each product of a bit and of a power of
// two of the factor has a place of its own, so nothing is carried, and the highest byte has the eight bits in order.
inline uint8_t gather_bits(uint64_t eight, uint32_t bit) {
    return static_cast<uint8_t>(((eight >> bit & kLowBits) * 0x0102040810204080) >> 56);
}

// `bytes`, or the first eight of more, filled up with zeros.
inline uint64_t load_up_to_eight(const uint8_t* from, uint32_t bytes) {
    if (bytes >= 8) return load_eight(from);
    uint64_t eight = 0;
    std::memcpy(&eight, from, bytes);
    return eight;
}

// Writes the planes of the lowest bits of `count` bytes, a multiple of 32, one plane after another. Returns the end.
template <uint32_t kPlanes>
uint8_t* write_planes(const uint8_t* bytes, uint32_t count, uint8_t* to) {
    const uint32_t stride = count / 8;
    for (uint32_t i = 0; i < count; i += 16) {
#ifdef __SSE2__
        // The processor gathers the highest bits of sixteen bytes by itself.
        __m128i sixteen = _mm_slli_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i)), 8 - kPlanes);
        for (uint32_t plane = kPlanes; plane-- > 0; sixteen = _mm_add_epi8(sixteen, sixteen)) {
            const auto bits = static_cast<uint16_t>(_mm_movemask_epi8(sixteen));
            std::memcpy(to + plane * stride + i / 8, &bits, sizeof bits);
        }
#else
        for (uint32_t plane = 0; plane < kPlanes; plane++)
            for (const uint32_t k : {i, i + 8}) to[plane * stride + k / 8] = gather_bits(load_eight(bytes + k), plane);
#endif
    }
    return to + uint64_t(kPlanes) * stride;
}

namespace detail {
constexpr std::array<uint64_t, 256> make_spread() {
    std::array<uint64_t, 256> table{};
    for (uint32_t byte = 0; byte < 256; byte++)
        for (uint32_t i = 0; i < 8; i++) table[byte] |= static_cast<uint64_t>(byte >> i & 1) << (8 * i);
    return table;
}
inline constexpr std::array<uint64_t, 256> kSpread = make_spread();
}  // namespace detail

// Eight bytes of 0 or 1, from eight bits.
inline uint64_t spread_bits(uint8_t bits) { return detail::kSpread[bits]; }

inline void store_eight(uint8_t* to, uint64_t eight) { std::memcpy(to, &eight, sizeof eight); }

}  // namespace stagehand::codec
