// Snapshot: the figures of a whole process, and their JSON document. docs/telemetry.md lists its members.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stagehand/device.h>
#include <stagehand/telemetry.h>

#include "base/status.h"
#include "telemetry/set_reading.h"

namespace stagehand::telemetry {

// Grows if members change their meaning or are removed. New members need no new version.
constexpr int kSnapshotVersion = 1;

struct RuntimeReading {
    uint64_t id = 0;  // unique among the runtimes of the process
    std::string name;
    uint64_t clock_ns = 0;  // of its device, at the time of reading the counters
    sh_runtime_stats stats = sh_sized<sh_runtime_stats>();
    std::vector<SetReading> sets;
};

struct DeviceReading {
    std::string name;
    std::string description;
    uint64_t clock_ns = 0;
    uint64_t link_bytes_per_second = 0;  // 0 if not known yet
    Status status;                       // result of reading the memory figures
    sh_memory_info memory = sh_sized<sh_memory_info>();
    std::vector<RuntimeReading> runtimes;
};

struct Snapshot {
    std::vector<DeviceReading> devices;
    uint32_t busy = 0;  // runtimes and devices that were not read, because they were in use all the time
};

// Returns one line of JSON with its newline.
std::string snapshot_text(const Snapshot& snapshot);

}  // namespace stagehand::telemetry
