// The figures of runtimes, sets and devices by name. Step lines, the monitor's snapshots, and the answers and metrics
// of a control are made from these tables.
#pragma once

#include <cstdint>

#include <stagehand/device.h>
#include <stagehand/members.h>
#include <stagehand/telemetry.h>

namespace stagehand::telemetry {

// How the line of a step tells a figure: not at all or under another name, as a difference, or as it is.
enum class InLine : uint8_t { no, change, level };

struct RuntimeFigure {
    const char* name;
    uint64_t sh_runtime_stats::*value;
    InLine in_line;
};

inline constexpr RuntimeFigure kRuntimeFigures[] = {
    {"steps", &sh_runtime_stats::steps, InLine::no},
    {"acquires", &sh_runtime_stats::acquires, InLine::change},
    {"hits", &sh_runtime_stats::hits, InLine::change},
    {"in_time", &sh_runtime_stats::in_time, InLine::change},
    {"misses", &sh_runtime_stats::misses, InLine::change},
    {"loads", &sh_runtime_stats::loads, InLine::change},
    {"load_pieces", &sh_runtime_stats::load_pieces, InLine::change},
    {"bytes_to_device", &sh_runtime_stats::bytes_to_device, InLine::change},
    {"helped_bytes", &sh_runtime_stats::helped_bytes, InLine::change},
    {"bytes_to_host", &sh_runtime_stats::bytes_to_host, InLine::change},
    {"write_backs", &sh_runtime_stats::write_backs, InLine::change},
    {"cancelled_loads", &sh_runtime_stats::cancelled_loads, InLine::change},
    {"failed_loads", &sh_runtime_stats::failed_loads, InLine::change},
    {"host_waits", &sh_runtime_stats::host_waits, InLine::no},
    {"stall_ns", &sh_runtime_stats::stall_ns, InLine::no},
    {"plans", &sh_runtime_stats::plans, InLine::level},
    {"remaps", &sh_runtime_stats::remaps, InLine::change},
    {"evictions", &sh_runtime_stats::evictions, InLine::change},
    {"given_up_bytes", &sh_runtime_stats::given_up_bytes, InLine::no},
    {"last_step_ns", &sh_runtime_stats::last_step_ns, InLine::no},
    {"resident_bytes", &sh_runtime_stats::resident_bytes, InLine::level},
    {"ring_bytes", &sh_runtime_stats::ring_bytes, InLine::level},
    {"unordered_bytes", &sh_runtime_stats::unordered_bytes, InLine::no},
    {"held_bytes", &sh_runtime_stats::held_bytes, InLine::level},
    {"share_bytes", &sh_runtime_stats::share_bytes, InLine::level},
    {"protected_bytes", &sh_runtime_stats::protected_bytes, InLine::no},
    {"reserved_bytes", &sh_runtime_stats::reserved_bytes, InLine::no},
    {"guest_bytes", &sh_runtime_stats::guest_bytes, InLine::no},
};

struct SetFigure {
    const char* name;
    uint64_t sh_set_info::*value;
    InLine in_line;    // a change: the figure is a counter
    const char* help;  // of the metric
};

inline constexpr SetFigure kSetFigures[] = {
    {"members", &sh_set_info::members, InLine::level, "Members of a set, such as experts."},
    {"slots", &sh_set_info::slots, InLine::level, "Slots for members that the set has on the device."},
    {"stride", &sh_set_info::stride, InLine::level, "Distance between slots in bytes."},
    {"uses", &sh_set_info::uses, InLine::change, "Members that calls have asked for."},
    {"hits", &sh_set_info::hits, InLine::change, "Of these, those that were in slots, or on their way."},
    {"evictions", &sh_set_info::evictions, InLine::change, "Members that have made room for others."},
};

struct DeviceFigure {
    const char* name;
    uint64_t sh_memory_info::*value;
    const char* metric;
    const char* help;  // of the metric
};

inline constexpr DeviceFigure kDeviceFigures[] = {
    {"budget_bytes", &sh_memory_info::budget_bytes, "stagehand_device_budget_bytes", "The budget in force."},
    {"used_bytes", &sh_memory_info::used_bytes, "stagehand_device_used_bytes", "Device memory that the library holds."},
    {"peak_bytes", &sh_memory_info::peak_bytes, "stagehand_device_peak_bytes",
     "The most device memory that the library ever held."},
    {"free_bytes", &sh_memory_info::free_bytes, "stagehand_device_free_bytes",
     "Free memory of the device, as the driver reports it."},
    {"total_bytes", &sh_memory_info::total_bytes, "stagehand_device_size_bytes", "Size of the device's memory."},
    {"page_bytes", &sh_memory_info::page_bytes, "stagehand_device_page_bytes", "The unit of device memory."},
    {"staging_bytes", &sh_memory_info::staging_bytes, "stagehand_host_staging_bytes",
     "Host memory that the library holds for staging."},
    {"pinned_bytes", &sh_memory_info::pinned_bytes, "stagehand_host_pinned_bytes",
     "The pinned part of the library's host memory."},
    {"reserved_bytes", &sh_memory_info::reserved_bytes, "stagehand_device_reserved_bytes",
     "Sum of the reservations in force."},
    {"guest_bytes", &sh_memory_info::guest_bytes, "stagehand_device_guest_bytes",
     "Device memory that guests were granted."},
    {"protected_bytes", &sh_memory_info::protected_bytes, "stagehand_device_protected_bytes",
     "Device memory that is kept for its runtimes."},
    {"headroom_bytes", &sh_memory_info::headroom_bytes, "stagehand_device_headroom_bytes",
     "The most that one more guest can get."},
};

}  // namespace stagehand::telemetry
