#include "codec/tile.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "codec/bit_planes.h"

namespace stagehand::codec {
namespace {

static_assert(std::endian::native == std::endian::little, "tiles are little-endian, and are read as they lie");

constexpr uint32_t kHeaderBytes = 16, kTableSize = 7, kEscape = 7, kCodeBits = 3;
constexpr uint8_t kRaw = 0, kCoded = 1;

struct TileHeader {
    uint8_t table[kTableSize];
    uint8_t kind;
    uint32_t escapes;
    uint32_t reserved;
};
static_assert(sizeof(TileHeader) == kHeaderBytes);

constexpr uint32_t filled(uint32_t elements) { return (elements + 31) / 32 * 32; }

template <FloatFormat kFormat>
struct Elements {
    static constexpr FloatFields kFields = fields_of(kFormat);
    static constexpr uint32_t kMantissa = kFields.mantissa_bits, kExponent = kFields.exponent_bits;
    static constexpr uint32_t kRestBytes = kFields.rest_bits() / 8, kRestPlanes = kFields.rest_bits() % 8;
    using Word =
        std::conditional_t<kFields.bytes() == 4, uint32_t, std::conditional_t<kFields.bytes() == 2, uint16_t, uint8_t>>;
    static constexpr uint32_t kMantissaMask = (uint32_t(1) << kMantissa) - 1;
    static constexpr uint32_t kExponentMask = (uint32_t(1) << kExponent) - 1;

    static uint8_t exponent(Word word) { return static_cast<uint8_t>(word >> kMantissa & kExponentMask); }
    static uint32_t rest(Word word) {
        return (word & kMantissaMask) | static_cast<uint32_t>(word) >> (kMantissa + kExponent) << kMantissa;
    }
    static Word join(uint32_t exponent, uint32_t rest) {
        return static_cast<Word>((rest & kMantissaMask) | exponent << kMantissa |
                                 rest >> kMantissa << (kMantissa + kExponent));
    }
    // Of the body.
    static uint64_t raw_bytes(uint32_t elements) { return tile_aligned(uint64_t(elements) * sizeof(Word)); }
    static uint64_t coded_bytes(uint32_t elements, uint32_t escapes) {
        const uint64_t all = filled(elements);
        return tile_aligned(all / 8 * (kCodeBits + kRestPlanes) + all * kRestBytes + escapes);
    }
};

using Bytes = std::array<uint8_t, kTileElements>;

// The most frequent exponents, and the number of elements that have another one.
struct Code {
    std::array<uint8_t, kTableSize> table{};  // places that are left over have the exponent 0, after its own place
    uint32_t escapes = 0;

    Code(const uint8_t* exponents, uint32_t elements) {
        // Four counts, so that equal neighbours do not wait for each other.
        std::array<std::array<uint32_t, 256>, 4> parts{};
        for (uint32_t i = 0; i < elements; i++) parts[i % 4][exponents[i]]++;
        std::array<uint32_t, 256> counts;
        for (uint32_t e = 0; e < 256; e++) counts[e] = parts[0][e] + parts[1][e] + parts[2][e] + parts[3][e];
        escapes = elements;
        for (uint8_t& place : table) {
            const auto most = std::max_element(counts.begin(), counts.end());
            if (*most == 0) break;
            place = static_cast<uint8_t>(most - counts.begin());
            escapes -= *most;
            *most = 0;
        }
    }

    // Comparisons with all of the table run on many elements at once, and a lookup does not.
    void write(const uint8_t* exponents, uint32_t elements, uint8_t* codes) const {
        for (uint32_t i = 0; i < elements; i++) {
            uint8_t code = kEscape;
            for (uint32_t place = kTableSize; place-- > 0;)
                code = exponents[i] == table[place] ? static_cast<uint8_t>(place) : code;
            codes[i] = code;
        }
    }
};

// Adds up the planes to the bytes that they were made of.
const uint8_t* read_planes(const uint8_t* from, uint32_t elements, uint32_t planes, uint8_t* bytes) {
    const uint32_t stride = elements / 8;
    for (uint32_t i = 0; i < stride; i++) {
        uint64_t eight = 0;
        for (uint32_t plane = 0; plane < planes; plane++) eight |= spread_bits(from[plane * stride + i]) << plane;
        store_eight(bytes + 8 * uint64_t(i), eight);
    }
    return from + uint64_t(planes) * stride;
}

// Of eight codes: a bit in the place of each that is 7.
uint64_t escapes_of(uint64_t codes) { return codes & codes >> 1 & codes >> 2 & kLowBits; }

uint8_t* write_escapes(const uint8_t* codes, const uint8_t* exponents, uint32_t elements, uint8_t* to) {
    for (uint32_t i = 0; i < elements; i += 8)  // codes are filled up with zeros
        for (uint64_t left = escapes_of(load_eight(codes + i)); left; left &= left - 1)
            *to++ = exponents[i + static_cast<uint32_t>(std::countr_zero(left)) / 8];
    return to;
}

template <FloatFormat kFormat>
uint64_t pack_elements(const void* from, uint32_t elements, uint8_t* to_header, uint8_t* to) {
    using Of = Elements<kFormat>;
    std::array<typename Of::Word, kTileElements> words;
    std::memcpy(words.data(), from, uint64_t(elements) * sizeof(typename Of::Word));
    const uint32_t all = filled(elements);
    Bytes exponents, codes;
    for (uint32_t i = 0; i < elements; i++) exponents[i] = Of::exponent(words[i]);
    const Code code(exponents.data(), elements);
    const uint64_t raw = Of::raw_bytes(elements), size = Of::coded_bytes(elements, code.escapes);
    TileHeader header = {};
    if ((kHeaderBytes + size) * 20 > (kHeaderBytes + raw) * 19) {
        header.kind = kRaw;
        std::memcpy(to_header, &header, sizeof header);
        std::memset(to + raw - kTileAlignment, 0, kTileAlignment);
        std::memcpy(to, words.data(), uint64_t(elements) * sizeof(typename Of::Word));
        return raw;
    }
    header.kind = kCoded;
    header.escapes = code.escapes;
    std::copy(code.table.begin(), code.table.end(), header.table);
    std::memcpy(to_header, &header, sizeof header);
    uint8_t* next = to;

    code.write(exponents.data(), elements, codes.data());
    std::fill(codes.begin() + elements, codes.begin() + all, uint8_t(0));
    next = write_planes(codes.data(), all, kCodeBits, next);
    if constexpr (Of::kRestPlanes > 0) {
        Bytes bytes;
        for (uint32_t i = 0; i < elements; i++)
            bytes[i] = static_cast<uint8_t>(Of::rest(words[i]) >> (8 * Of::kRestBytes));
        std::fill(bytes.begin() + elements, bytes.begin() + all, uint8_t(0));
        next = write_planes(bytes.data(), all, Of::kRestPlanes, next);
    }
    for (uint32_t byte = 0; byte < Of::kRestBytes; byte++) {
        for (uint32_t i = 0; i < elements; i++) next[i] = static_cast<uint8_t>(Of::rest(words[i]) >> (8 * byte));
        std::fill(next + elements, next + all, uint8_t(0));
        next += all;
    }
    next = write_escapes(codes.data(), exponents.data(), elements, next);
    std::fill(next, to + size, uint8_t(0));
    return size;
}

// Puts exponents in the place of their codes. False if the number of escapes is another one.
bool decode_exponents(const TileHeader& header, const uint8_t* escapes, uint32_t elements, uint8_t* codes) {
    uint8_t table[8] = {};
    std::copy(header.table, header.table + kTableSize, table);
    uint32_t escaped = 0;
    for (uint32_t i = 0; i < elements; i += 8) {
        const uint64_t eight = load_eight(codes + i);
        if (escapes_of(eight) == 0) {
            for (uint32_t k = i; k < i + 8; k++) codes[k] = table[codes[k] & 7];
            continue;
        }
        for (uint32_t k = i; k < i + 8; k++) {
            const bool escapes_here = codes[k] == kEscape;
            if (escapes_here && escaped == header.escapes) return false;
            codes[k] = escapes_here ? escapes[escaped++] : table[codes[k] & 7];
        }
    }
    return escaped == header.escapes;
}

template <FloatFormat kFormat>
bool unpack_elements(const TileHeader& header, std::span<const uint8_t> body, uint32_t elements, void* to) {
    using Of = Elements<kFormat>;
    if (header.reserved != 0 || header.kind > kCoded || header.escapes > elements) return false;
    const uint8_t* next = body.data();
    if (header.kind == kRaw) {
        if (body.size() != Of::raw_bytes(elements) || header.escapes) return false;
        std::memcpy(to, next, uint64_t(elements) * sizeof(typename Of::Word));
        return true;
    }
    if (body.size() != Of::coded_bytes(elements, header.escapes)) return false;
    const uint32_t all = filled(elements);
    Bytes exponents, high;
    next = read_planes(next, all, kCodeBits, exponents.data());
    if constexpr (Of::kRestPlanes > 0) next = read_planes(next, all, Of::kRestPlanes, high.data());
    if (!decode_exponents(header, next + uint64_t(all) * Of::kRestBytes, all, exponents.data())) return false;
    std::array<typename Of::Word, kTileElements> words;
    for (uint32_t i = 0; i < elements; i++) {
        uint32_t rest = 0;
        if constexpr (Of::kRestPlanes > 0) rest = uint32_t(high[i]) << (8 * Of::kRestBytes);
        for (uint32_t byte = 0; byte < Of::kRestBytes; byte++)
            rest |= uint32_t(next[uint64_t(byte) * all + i]) << (8 * byte);
        words[i] = Of::join(exponents[i] & Of::kExponentMask, rest);
    }
    std::memcpy(to, words.data(), uint64_t(elements) * sizeof(typename Of::Word));
    return true;
}

TileHeader header_at(const uint8_t* place) {
    TileHeader header;
    std::memcpy(&header, place, sizeof header);
    return header;
}

// Calls `work` with the format as a template argument.
template <class Work>
auto with_format(FloatFormat format, Work&& work) {
    switch (format) {
        case FloatFormat::bf16:
            return work.template operator()<FloatFormat::bf16>();
        case FloatFormat::f16:
            return work.template operator()<FloatFormat::f16>();
        case FloatFormat::f32:
            return work.template operator()<FloatFormat::f32>();
        case FloatFormat::f8_e4m3:
            return work.template operator()<FloatFormat::f8_e4m3>();
        case FloatFormat::f8_e5m2:
            break;
    }
    return work.template operator()<FloatFormat::f8_e5m2>();
}

}  // namespace

uint64_t largest_tile_bytes(FloatFormat format, uint32_t elements) {
    return with_format(format,
                       [&]<FloatFormat kFormat> { return kHeaderBytes + Elements<kFormat>::raw_bytes(elements); });
}

uint64_t smallest_tile_bytes(FloatFormat format, uint32_t elements) {
    return with_format(format, [&]<FloatFormat kFormat> {
        using Of = Elements<kFormat>;
        return kHeaderBytes + std::min(Of::raw_bytes(elements), Of::coded_bytes(elements, 0));
    });
}

uint64_t pack_tile(FloatFormat format, const void* from, uint32_t elements, uint8_t* header, uint8_t* body) {
    return with_format(format,
                       [&]<FloatFormat kFormat> { return pack_elements<kFormat>(from, elements, header, body); });
}

uint64_t pack_tile(FloatFormat format, const void* from, uint32_t elements, uint8_t* to) {
    return kHeaderBytes + pack_tile(format, from, elements, to, to + kHeaderBytes);
}

bool unpack_tile(FloatFormat format, const uint8_t* header, std::span<const uint8_t> body, uint32_t elements,
                 void* to) {
    const TileHeader read = header_at(header);
    return with_format(format, [&]<FloatFormat kFormat> { return unpack_elements<kFormat>(read, body, elements, to); });
}

bool unpack_tile(FloatFormat format, std::span<const uint8_t> tile, uint32_t elements, void* to) {
    return tile.size() >= kHeaderBytes && unpack_tile(format, tile.data(), tile.subspan(kHeaderBytes), elements, to);
}

uint64_t body_bytes(FloatFormat format, const uint8_t* header, uint32_t elements) {
    const TileHeader read = header_at(header);
    return with_format(format, [&]<FloatFormat kFormat> {
        using Of = Elements<kFormat>;
        const uint64_t raw = Of::raw_bytes(elements);
        return read.kind == kRaw ? raw : std::min(raw, Of::coded_bytes(elements, std::min(read.escapes, elements)));
    });
}

bool is_raw_tile(std::span<const uint8_t> tile) {
    return tile.size() > offsetof(TileHeader, kind) && tile[offsetof(TileHeader, kind)] == kRaw;
}

}  // namespace stagehand::codec
