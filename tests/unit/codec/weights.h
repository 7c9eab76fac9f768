// Elements to pack: like the weights of a model, like nothing at all, and all that there are.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "codec/float_format.h"

namespace stagehand::codec::test {

inline constexpr FloatFormat kFormats[] = {FloatFormat::bf16, FloatFormat::f16, FloatFormat::f32, FloatFormat::f8_e4m3,
                                           FloatFormat::f8_e5m2};

// The element next to zero from `value`, without a care for rounding: its bits are those of a weight all the same.
inline uint32_t element_of(FloatFormat format, float value) {
    const FloatFields fields = fields_of(format);
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const int32_t bias = (1 << (fields.exponent_bits - 1)) - 1;
    const int32_t exponent = static_cast<int32_t>(bits >> 23 & 0xff) - 127 + bias;
    const uint32_t sign = bits >> 31 << (fields.exponent_bits + fields.mantissa_bits);
    if (exponent <= 0) return sign;
    const uint32_t mantissa = (bits & 0x7fffff) >> (23 - fields.mantissa_bits);
    return sign | static_cast<uint32_t>(exponent) << fields.mantissa_bits | mantissa;
}

inline void append(std::vector<uint8_t>* to, uint32_t element, uint32_t bytes) {
    for (uint32_t byte = 0; byte < bytes; byte++) to->push_back(static_cast<uint8_t>(element >> (8 * byte)));
}

// Weights with a normal distribution.
inline std::vector<uint8_t> weights(FloatFormat format, uint64_t elements, uint32_t seed, float deviation = 0.02f) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, deviation);
    std::vector<uint8_t> bytes;
    for (uint64_t i = 0; i < elements; i++)
        append(&bytes, element_of(format, normal(random)), fields_of(format).bytes());
    return bytes;
}

// Weights that repeat, with other mantissas for each seed. Many random weights would take long. No unit of a frame is a
// period of theirs.
inline std::vector<uint8_t> repeated_weights(FloatFormat format, uint64_t elements, uint8_t seed) {
    const uint32_t size = fields_of(format).bytes();
    const std::vector<uint8_t> some = weights(format, 50'001, 1);
    std::vector<uint8_t> all;
    all.reserve(elements * size + some.size());
    while (all.size() < elements * size) all.insert(all.end(), some.begin(), some.end());
    all.resize(elements * size);
    for (size_t i = 0; i < all.size(); i += size) all[i] ^= seed;
    return all;
}

// Any bits: NaNs, infinities and denormals among them.
inline std::vector<uint8_t> any_bits(FloatFormat format, uint64_t elements, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<uint8_t> bytes(elements * fields_of(format).bytes());
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    return bytes;
}

}  // namespace stagehand::codec::test
