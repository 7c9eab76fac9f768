// Settings of a host device: its options, read and checked.
#pragma once

#include <cstdint>

#include <stagehand/base.h>

namespace stagehand::host {

struct Settings {
    uint64_t capacity_bytes = 0;     // of the device; by default half of the memory that the process may have
    uint64_t granularity_bytes = 0;  // smallest page; by default the system's
    uint64_t bandwidth = 0;          // bytes a second in each direction; 0: as fast as it goes
    uint64_t latency_ns = 0;         // of each copy and fill
    uint64_t staging_piece_bytes = 512 << 10;
    uint64_t pin_limit_bytes = 0;  // more is refused by host_register(); 0: no limit
    uint64_t jitter_ns = 0;        // most time by which each command of a stream is delayed at random
    uint64_t jitter_seed = 1;
    bool poison = false;  // new pages are filled with kPoison
    bool map_pages = true;  // false: as a device that does not map memory by pages
};

constexpr uint8_t kPoison = 0xdb;

sh_status read_settings(const char* options, Settings* out);

}  // namespace stagehand::host
