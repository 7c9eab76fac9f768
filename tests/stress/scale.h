// How much of a stress test is run: the variable STAGEHAND_STRESS_SCALE multiplies the counts, 1 where it is not set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace stagehand::test {

inline uint64_t scaled(uint64_t count) {
    const char* const text = std::getenv("STAGEHAND_STRESS_SCALE");
    const double scale = text ? std::strtod(text, nullptr) : 1.0;
    return std::max<uint64_t>(1, static_cast<uint64_t>(static_cast<double>(count) * scale));
}

}  // namespace stagehand::test
