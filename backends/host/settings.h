// Settings of a host device: its options, read and checked.
#pragma once

#include <cstdint>

#include <stagehand/base.h>

namespace stagehand::host {

struct Settings {
    uint64_t capacity_bytes = 0;      // of the device; by default half of the memory that the process may have
    uint64_t granularity_bytes = 0;   // smallest page; by default the page of the system
    uint64_t largest_page_bytes = 0;  // no option: it follows from the smallest page
    uint64_t bandwidth = 0;           // bytes per second in each direction; 0: unlimited
    uint64_t latency_ns = 0;          // of each copy and fill
    uint64_t staging_piece_bytes = 512 << 10;
    uint64_t largest_handle_bytes = 0;  // of memory of sh_alloc(); 0: as for pages
    uint64_t pin_limit_bytes = 0;       // host_register() refuses to pin more; 0: no limit
    uint64_t jitter_ns = 0;             // each command of a stream is delayed at random by up to this time
    uint64_t jitter_seed = 1;
    bool poison = false;    // fills new pages with kPoison
    bool map_pages = true;  // false: behaves like a device that does not map pages
};

constexpr uint8_t kPoison = 0xdb;

sh_status read_settings(const char* options, Settings* out);

}  // namespace stagehand::host
