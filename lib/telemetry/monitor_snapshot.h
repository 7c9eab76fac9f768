// Snapshot: what the monitor tells of a process, and the document that it becomes. docs/telemetry.md lists its members.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stagehand/device.h>
#include <stagehand/telemetry.h>

#include "base/status.h"

namespace stagehand::telemetry {

// Grows when members change their meaning or go; new ones may come without.
constexpr int kMonitorVersion = 1;

struct RuntimeReading {
    uint64_t id = 0;         // of no other runtime of the process
    std::string name;
    uint64_t clock_ns = 0;   // of its device, when the counters were read
    sh_runtime_stats stats = SH_RUNTIME_STATS_INIT;
};

struct DeviceReading {
    std::string name;
    std::string description;
    uint64_t clock_ns = 0;
    uint64_t link_bytes_per_second = 0;   // 0: not known yet
    Status status;                        // of reading the memory
    sh_memory_info memory = SH_MEMORY_INFO_INIT;
    std::vector<RuntimeReading> runtimes;
};

struct Snapshot {
    std::vector<DeviceReading> devices;
    uint32_t busy = 0;   // runtimes and devices that could not be read, because they were in use all the time
};

// One line of JSON with its newline.
std::string snapshot_text(const Snapshot& snapshot);
// The same for a request that was not understood.
std::string refusal_text(const std::string& reason);

}  // namespace stagehand::telemetry
