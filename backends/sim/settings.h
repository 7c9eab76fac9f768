// Settings of a simulated device: its options, read and checked.
#pragma once

#include <cstdint>

#include <stagehand/base.h>

namespace stagehand::sim {

struct Settings {
    uint64_t capacity_bytes = uint64_t(1) << 40;
    uint64_t granularity_bytes = 2 << 20;
    uint64_t largest_page_bytes = 32 << 20;
    uint64_t staging_piece_bytes = 4 << 20;
    uint64_t bandwidth = 55500000000u;  // bytes per second in each direction
    uint64_t later_bandwidth = 0;       // of copies that begin at `later_from_ns` or after it; 0: the same
    uint64_t later_from_ns = 0;
    double duplex = 2;  // speed of both directions together, as a multiple of one direction: 1 to 2
    uint64_t unpack_speed = 1'000'000'000'000;  // bytes of contents per second
    uint64_t latency_ns = 0;                    // of each copy, fill and unpacking
    uint64_t call_ns = 0;                       // host time for queuing a command
};

sh_status read_settings(const char* options, Settings* out);

}  // namespace stagehand::sim
