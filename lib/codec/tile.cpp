#include "codec/tile.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

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

// How often each exponent is there.
template <uint32_t kExponentBits>
std::array<uint32_t, 1 << kExponentBits> count_exponents(const uint8_t* exponents, uint32_t elements) {
    constexpr uint32_t kExponents = 1 << kExponentBits;
    std::array<uint32_t, kExponents> counts{};
    if constexpr (kExponentBits <= 5) {
        // Pairs of neighbours are counted, in half the steps.
        std::array<std::array<uint32_t, kExponents * kExponents>, 2> pairs{};
        uint32_t i = 0;
        for (; i + 4 <= elements; i += 4) {
            pairs[0][exponents[i] | exponents[i + 1] << kExponentBits]++;
            pairs[1][exponents[i + 2] | exponents[i + 3] << kExponentBits]++;
        }
        for (; i < elements; i++) counts[exponents[i]]++;
        for (uint32_t high = 0; high < kExponents; high++) {
            const uint32_t* const a = &pairs[0][high << kExponentBits];
            const uint32_t* const b = &pairs[1][high << kExponentBits];
            uint32_t with_high = 0;
            for (uint32_t low = 0; low < kExponents; low++) {
                counts[low] += a[low] + b[low];
                with_high += a[low] + b[low];
            }
            counts[high] += with_high;
        }
    } else {
        // Four counts, so that equal neighbours do not wait for each other.
        std::array<std::array<uint32_t, kExponents>, 4> parts{};
        for (uint32_t i = 0; i < elements; i++) parts[i % 4][exponents[i]]++;
        for (uint32_t e = 0; e < kExponents; e++) counts[e] = parts[0][e] + parts[1][e] + parts[2][e] + parts[3][e];
    }
    return counts;
}

// The most frequent exponents, and the number of elements that have another one.
template <uint32_t kExponentBits>
struct Code {
    std::array<uint8_t, kTableSize> table{};  // places that are left over have the exponent 0, after its own place
    uint32_t escapes = 0;

    Code(const uint8_t* exponents, uint32_t elements) {
        std::array<uint32_t, 1 << kExponentBits> counts = count_exponents<kExponentBits>(exponents, elements);
        std::array<uint8_t, 1 << kExponentBits> used;
        uint32_t left = 0;
        for (uint32_t e = 0; e < counts.size(); e++) {
            used[left] = static_cast<uint8_t>(e);
            left += counts[e] != 0;
        }
        escapes = elements;
        for (uint8_t& place : table) {
            const auto most = std::max_element(used.begin(), used.begin() + left,
                                               [&](uint8_t a, uint8_t b) { return counts[a] < counts[b]; });
            if (most == used.begin() + left || counts[*most] == 0) break;
            place = *most;
            escapes -= std::exchange(counts[*most], 0);
        }
    }

    // Comparisons with all of the table run on many elements at once, and a lookup does not. The first place counts.
    void write(const uint8_t* exponents, uint32_t elements, uint8_t* codes) const {
        for (uint32_t i = 0; i < elements; i++) {
            uint8_t before_escape = 0;
            for (uint32_t place = kTableSize; place-- > 0;) {
                const uint8_t here = exponents[i] == table[place] ? static_cast<uint8_t>(kEscape - place) : uint8_t(0);
                before_escape = before_escape > here ? before_escape : here;
            }
            codes[i] = static_cast<uint8_t>(kEscape - before_escape);
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

// The exponents of the elements that have a bit in all of the code's planes.
uint8_t* write_escapes(const uint8_t* planes, const uint8_t* exponents, uint32_t elements, uint8_t* to) {
    static_assert(kEscape == (1 << kCodeBits) - 1);
    const uint32_t stride = elements / 8;
    for (uint32_t i = 0; i < stride; i += 8) {
        uint64_t left = ~uint64_t(0);
        for (uint32_t plane = 0; plane < kCodeBits; plane++)
            left &= load_up_to_eight(planes + plane * stride + i, stride - i);
        for (; left; left &= left - 1) *to++ = exponents[8 * i + static_cast<uint32_t>(std::countr_zero(left))];
    }
    return to;
}

template <FloatFormat kFormat>
uint64_t pack_elements(const void* from, uint32_t elements, uint8_t* to_header, uint8_t* to) {
    using Of = Elements<kFormat>;
    std::array<typename Of::Word, kTileElements> words;
    std::memcpy(words.data(), from, uint64_t(elements) * sizeof(typename Of::Word));
    const uint32_t all = filled(elements);
    Bytes exponents, planes;
    for (uint32_t i = 0; i < elements; i++) exponents[i] = Of::exponent(words[i]);
    const Code<Of::kExponent> code(exponents.data(), elements);
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

    code.write(exponents.data(), elements, planes.data());
    if constexpr (Of::kRestPlanes > 0)
        for (uint32_t i = 0; i < elements; i++)
            planes[i] |= static_cast<uint8_t>(Of::rest(words[i]) >> (8 * Of::kRestBytes) << kCodeBits);
    std::fill(planes.begin() + elements, planes.begin() + all, uint8_t(0));
    uint8_t* next = write_planes<kCodeBits + Of::kRestPlanes>(planes.data(), all, to);
    for (uint32_t byte = 0; byte < Of::kRestBytes; byte++) {
        for (uint32_t i = 0; i < elements; i++) next[i] = static_cast<uint8_t>(Of::rest(words[i]) >> (8 * byte));
        std::fill(next + elements, next + all, uint8_t(0));
        next += all;
    }
    next = write_escapes(to, exponents.data(), all, next);
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
