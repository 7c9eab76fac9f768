// Sums that stop at the largest number.
#pragma once

#include <cstdint>

namespace stagehand {

inline uint64_t saturating_sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

}  // namespace stagehand
