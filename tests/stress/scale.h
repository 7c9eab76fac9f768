// How much of a stress test runs. The variable STAGEHAND_STRESS_SCALE multiplies the counts; it may be a fraction, and
// is 1 if it is not set.
#pragma once

#include <algorithm>
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

}  // namespace stagehand::test
