// How much of a long test runs. The variable STAGEHAND_STRESS_SCALE multiplies the counts of a stress test; it may be a
// fraction, and is 1 if it is not set. Unit tests with very many cases are shortened by it, but never lengthened. The
// tests of the command read it in tests/cli/harness.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>

namespace stagehand::test {

inline double stress_scale() {
    const char* const text = std::getenv("STAGEHAND_STRESS_SCALE");
    const double scale = text ? std::strtod(text, nullptr) : 1.0;
    return scale > 0 ? scale : 1.0;
}

inline uint64_t scaled(uint64_t count) {
    return std::max<uint64_t>(1, static_cast<uint64_t>(static_cast<double>(count) * stress_scale()));
}

// The distance between the cases that run, when every `stride`-th one runs at scale 1.
inline uint64_t scaled_stride(uint64_t stride) {
    return std::max<uint64_t>(1, static_cast<uint64_t>(static_cast<double>(stride) / stress_scale()));
}

// For unit tests.
inline uint64_t shortened(uint64_t count) { return std::min(count, scaled(count)); }
inline uint64_t shortened_stride(uint64_t stride) { return std::max(stride, scaled_stride(stride)); }

// True if nothing is shortened. An average over a part of the cases may be far from that over all of them.
inline bool whole_length() { return stress_scale() >= 1; }

// True if case `k` of a unit test runs. Below scale 1 the cases that run are spread evenly, and have no period that the
// innermost of nested loops could have too.
inline bool in_sample(uint64_t k) {
    const double turns = static_cast<double>(k) * 0.6180339887498949;
    return turns - std::floor(turns) < stress_scale();
}

}  // namespace stagehand::test
