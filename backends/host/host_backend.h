// The host backend: a device whose memory is a memfd, mapped by pages at fixed addresses, and whose streams are
// threads. It behaves like a real device, except for the speed. With a bandwidth and a latency it takes the time that a
// device would take.
#pragma once

#include <cstdint>
#include <vector>

#include <stagehand/backend.h>

namespace stagehand::host {

// See sh_backend_query() of a plugin.
sh_status query(uint32_t spi_version, const sh_backend_host* services, const sh_backend** out_backend);

// The static table of the backend.
const sh_backend* host_backend();

// The memory and the objects that an open device holds, for tests and measurements.
struct MemoryStatistics {
    uint64_t current_bytes = 0;  // of the pages that exist
    uint64_t peak_bytes = 0;     // highest current_bytes at any instant since the device was opened
    uint64_t mapped_bytes = 0;   // of the addresses that are mapped: an alias counts again
    uint64_t file_bytes = 0;     // memory that the system holds for the file
    uint64_t pages = 0;
    uint64_t streams = 0;
    uint64_t events = 0;
    uint64_t pinned_bytes = 0;
};

MemoryStatistics memory_statistics(sh_backend_device* device);

// Returns the statistics of every open device of this process, in the order of opening.
std::vector<MemoryStatistics> all_memory_statistics();

// Waits until the streams of all open devices of this process have run what was queued: what hardware knows, for tests
// in which the calls of the backend fail. No device may be closed meanwhile.
void wait_for_all_work();

}  // namespace stagehand::host
