#include "telemetry/snapshot.h"

#include <unistd.h>

#include <cerrno>

#include "telemetry/figures.h"
#include "telemetry/json_text.h"

namespace stagehand::telemetry {
namespace {

void add(JsonText& json, const RuntimeReading& reading) {
    const sh_runtime_stats& stats = reading.stats;
    json.begin_object();
    json.add("id", reading.id);
    json.add("name", reading.name);
    json.add("clock_ns", reading.clock_ns);
    json.add("lost", stats.lost != 0);
    for (const RuntimeFigure& figure : kRuntimeFigures) json.add(figure.name, stats.*figure.value);
    add_sets(json, reading.sets);
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
        for (const DeviceFigure& figure : kDeviceFigures) json.add(figure.name, memory.*figure.value);
    } else {
        json.add("error", reading.status.text());
    }
    json.begin_array("runtimes");
    for (const RuntimeReading& runtime : reading.runtimes) add(json, runtime);
    json.end_array().end_object();
}

}  // namespace

std::string snapshot_text(const Snapshot& snapshot) {
    JsonText json;
    json.begin_object();
    json.add("version", kSnapshotVersion)
        .add("library", sh_version())
        .add("pid", getpid())
        .add("program", program_invocation_short_name)
        .add("busy", snapshot.busy)
        .begin_array("devices");
    for (const DeviceReading& device : snapshot.devices) add(json, device);
    return json.end_array().end_object().text() + "\n";
}

}  // namespace stagehand::telemetry
