#include "telemetry/monitor_snapshot.h"

#include <unistd.h>

#include <cerrno>

#include "telemetry/json_text.h"

namespace stagehand::telemetry {
namespace {

// Begins the document. The caller ends its object.
JsonText document() {
    JsonText json;
    json.begin_object();
    json.add("version", kMonitorVersion)
        .add("library", sh_version())
        .add("pid", getpid())
        .add("program", program_invocation_short_name);
    return json;
}

void add(JsonText& json, const RuntimeReading& reading) {
    const sh_runtime_stats& stats = reading.stats;
    json.begin_object();
    json.add("id", reading.id);
    json.add("name", reading.name);
    json.add("clock_ns", reading.clock_ns);
    json.add("lost", stats.lost != 0);
    json.add("steps", stats.steps);
    json.add("acquires", stats.acquires);
    json.add("hits", stats.hits);
    json.add("misses", stats.misses);
    json.add("loads", stats.loads);
    json.add("load_pieces", stats.load_pieces);
    json.add("bytes_to_device", stats.bytes_to_device);
    json.add("bytes_to_host", stats.bytes_to_host);
    json.add("write_backs", stats.write_backs);
    json.add("cancelled_loads", stats.cancelled_loads);
    json.add("failed_loads", stats.failed_loads);
    json.add("host_waits", stats.host_waits);
    json.add("stall_ns", stats.stall_ns);
    json.add("plans", stats.plans);
    json.add("remaps", stats.remaps);
    json.add("evictions", stats.evictions);
    json.add("given_up_bytes", stats.given_up_bytes);
    json.add("last_step_ns", stats.last_step_ns);
    json.add("resident_bytes", stats.resident_bytes);
    json.add("ring_bytes", stats.ring_bytes);
    json.add("unordered_bytes", stats.unordered_bytes);
    json.add("held_bytes", stats.held_bytes);
    json.add("share_bytes", stats.share_bytes);
    json.add("protected_bytes", stats.protected_bytes);
    json.add("reserved_bytes", stats.reserved_bytes);
    json.add("guest_bytes", stats.guest_bytes);
    json.add("in_time", stats.in_time);
    json.add("helped_bytes", stats.helped_bytes);
    json.end_object();
}

void add(JsonText& json, const DeviceReading& reading) {
    const sh_memory_info& memory = reading.memory;
    json.begin_object()
        .add("name", reading.name)
        .add("description", reading.description)
        .add("clock_ns", reading.clock_ns);
    if (reading.link_bytes_per_second)
        json.add("link_bytes_per_second", reading.link_bytes_per_second);
    else
        json.add_null("link_bytes_per_second");
    if (reading.status.ok()) {
        json.add("runtime_count", memory.runtime_count);
        json.add("budget_bytes", memory.budget_bytes);
        json.add("used_bytes", memory.used_bytes);
        json.add("peak_bytes", memory.peak_bytes);
        json.add("free_bytes", memory.free_bytes);
        json.add("total_bytes", memory.total_bytes);
        json.add("page_bytes", memory.page_bytes);
        json.add("staging_bytes", memory.staging_bytes);
        json.add("pinned_bytes", memory.pinned_bytes);
        json.add("reserved_bytes", memory.reserved_bytes);
        json.add("guest_bytes", memory.guest_bytes);
        json.add("protected_bytes", memory.protected_bytes);
        json.add("headroom_bytes", memory.headroom_bytes);
    } else {
        json.add("error", reading.status.text());
    }
    json.begin_array("runtimes");
    for (const RuntimeReading& runtime : reading.runtimes) add(json, runtime);
    json.end_array().end_object();
}

}  // namespace

std::string snapshot_text(const Snapshot& snapshot) {
    JsonText json = document();
    json.add("busy", snapshot.busy).begin_array("devices");
    for (const DeviceReading& device : snapshot.devices) add(json, device);
    return json.end_array().end_object().text() + "\n";
}

std::string refusal_text(const std::string& reason) {
    JsonText json = document();
    return json.add("error", reason).end_object().text() + "\n";
}

}  // namespace stagehand::telemetry
