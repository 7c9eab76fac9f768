// The largest values that the library can count with. They hold for values from backends and for values from options.
// With larger values, sums of bytes and of nanoseconds overflow.
#pragma once

#include <bit>
#include <cstdint>

namespace stagehand::limits {

constexpr uint64_t kLargestPage = uint64_t(1) << 30;
constexpr uint64_t kSlowestLink = 1'000'000;  // in bytes per second
constexpr uint64_t kFastestLink = 1'000'000'000'000'000;
constexpr uint64_t kLongestLatency = 60'000'000'000;  // of a copy, in nanoseconds
constexpr uint64_t kMostHostNodes = 1024;             // of NUMA, as Linux has at most

constexpr bool is_page(uint64_t bytes) { return std::has_single_bit(bytes) && bytes <= kLargestPage; }
constexpr bool is_link(uint64_t bytes_per_second) {
    return bytes_per_second >= kSlowestLink && bytes_per_second <= kFastestLink;
}

}  // namespace stagehand::limits
