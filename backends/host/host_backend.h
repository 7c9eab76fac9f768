// The host backend: a device whose memory is a memfd, mapped by pages at fixed addresses, and whose streams
// are threads. It is real in every respect but speed, and can be paced: with a bandwidth and a latency it
// takes the time that a device would.
#pragma once

#include <cstdint>
#include <vector>

#include <stagehand/backend.h>

namespace stagehand::host {

// Same as a plugin's sh_backend_query().
sh_status query(uint32_t spi_version, const sh_backend_host* services, const sh_backend** out_backend);

// The table. Static.
const sh_backend* host_backend();

// What an open device holds, for tests and measurements.
struct MemoryStatistics {
    uint64_t current_bytes = 0;  // of pages that exist
    uint64_t peak_bytes = 0;     // highest current_bytes since the device was opened, at any instant
    uint64_t mapped_bytes = 0;   // of addresses that are mapped: an alias counts again
    uint64_t file_bytes = 0;     // what the system holds for the memory's file
    uint64_t pages = 0;
    uint64_t streams = 0;
    uint64_t events = 0;
    uint64_t pinned_bytes = 0;
};

MemoryStatistics memory_statistics(sh_backend_device* device);

// Of every open device of this process, in the order of opening.
std::vector<MemoryStatistics> all_memory_statistics();

}  // namespace stagehand::host
