// The floating-point formats that can be packed, and the fields of their elements: a sign, an exponent, a mantissa.
#pragma once

#include <cstdint>
#include <optional>

namespace stagehand::codec {

// The numbers stand in frames.
enum class FloatFormat : uint8_t { bf16 = 1, f16 = 2, f32 = 3, f8_e4m3 = 4, f8_e5m2 = 5 };

// Of an element, from its lowest bit: the mantissa, the exponent, the sign.
struct FloatFields {
    uint32_t mantissa_bits = 0;
    uint32_t exponent_bits = 0;

    constexpr uint32_t bytes() const { return (1 + exponent_bits + mantissa_bits) / 8; }
    // What is not the exponent: the mantissa, and above it the sign.
    constexpr uint32_t rest_bits() const { return mantissa_bits + 1; }
};

constexpr FloatFields fields_of(FloatFormat format) {
    switch (format) {
        case FloatFormat::bf16:
            return {7, 8};
        case FloatFormat::f16:
            return {10, 5};
        case FloatFormat::f32:
            return {23, 8};
        case FloatFormat::f8_e4m3:
            return {3, 4};
        case FloatFormat::f8_e5m2:
            return {2, 5};
    }
    return {};
}

// Nothing if no format has this number.
constexpr std::optional<FloatFormat> format_of(uint32_t number) {
    if (number < 1 || number > 5) return std::nullopt;
    return static_cast<FloatFormat>(number);
}

}  // namespace stagehand::codec
