#include "telemetry/monitor_snapshot.h"

#include <unistd.h>

#include <cerrno>

#include "telemetry/json.h"

namespace stagehand::telemetry {
namespace {

Json document() {
    return {{"version", kMonitorVersion}, {"library", sh_version()}, {"pid", getpid()}, {"program", program_invocation_short_name}};
}

Json to_json(const RuntimeReading& reading) {
    const sh_runtime_stats& stats = reading.stats;
    return {
        {"id", reading.id},
        {"name", reading.name},
        {"clock_ns", reading.clock_ns},
        {"lost", stats.lost != 0},
        {"steps", stats.steps},
        {"acquires", stats.acquires},
        {"hits", stats.hits},
        {"misses", stats.misses},
        {"loads", stats.loads},
        {"load_pieces", stats.load_pieces},
        {"bytes_to_device", stats.bytes_to_device},
        {"bytes_to_host", stats.bytes_to_host},
        {"write_backs", stats.write_backs},
        {"cancelled_loads", stats.cancelled_loads},
        {"failed_loads", stats.failed_loads},
        {"host_waits", stats.host_waits},
        {"stall_ns", stats.stall_ns},
        {"plans", stats.plans},
        {"remaps", stats.remaps},
        {"evictions", stats.evictions},
        {"given_up_bytes", stats.given_up_bytes},
        {"last_step_ns", stats.last_step_ns},
        {"resident_bytes", stats.resident_bytes},
        {"ring_bytes", stats.ring_bytes},
        {"unordered_bytes", stats.unordered_bytes},
        {"held_bytes", stats.held_bytes},
        {"share_bytes", stats.share_bytes},
        {"protected_bytes", stats.protected_bytes},
        {"reserved_bytes", stats.reserved_bytes},
        {"guest_bytes", stats.guest_bytes},
        {"in_time", stats.in_time},
    };
}

Json to_json(const DeviceReading& reading) {
    const sh_memory_info& memory = reading.memory;
    Json json = {{"name", reading.name}, {"description", reading.description}, {"clock_ns", reading.clock_ns}};
    json["link_bytes_per_second"] = reading.link_bytes_per_second ? Json(reading.link_bytes_per_second) : Json(nullptr);
    if (reading.status.ok()) {
        json["runtime_count"] = memory.runtime_count;
        json["budget_bytes"] = memory.budget_bytes;
        json["used_bytes"] = memory.used_bytes;
        json["peak_bytes"] = memory.peak_bytes;
        json["free_bytes"] = memory.free_bytes;
        json["total_bytes"] = memory.total_bytes;
        json["page_bytes"] = memory.page_bytes;
        json["staging_bytes"] = memory.staging_bytes;
        json["pinned_bytes"] = memory.pinned_bytes;
        json["reserved_bytes"] = memory.reserved_bytes;
        json["guest_bytes"] = memory.guest_bytes;
        json["protected_bytes"] = memory.protected_bytes;
        json["headroom_bytes"] = memory.headroom_bytes;
    } else {
        json["error"] = reading.status.text();
    }
    Json runtimes = Json::array();
    for (const RuntimeReading& runtime : reading.runtimes) runtimes.push_back(to_json(runtime));
    json["runtimes"] = std::move(runtimes);
    return json;
}

}  // namespace

std::string snapshot_text(const Snapshot& snapshot) {
    Json json = document();
    json["busy"] = snapshot.busy;
    Json devices = Json::array();
    for (const DeviceReading& device : snapshot.devices) devices.push_back(to_json(device));
    json["devices"] = std::move(devices);
    return json_line(json) + "\n";
}

std::string refusal_text(const std::string& reason) {
    Json json = document();
    json["error"] = reason;
    return json_line(json) + "\n";
}

}  // namespace stagehand::telemetry
