#include "api/process_snapshot.h"

#include <algorithm>
#include <chrono>
#include <vector>

using namespace stagehand;
using namespace stagehand::api;

namespace {

// What is in use for longer than this is left out, so that whoever asks has an answer.
constexpr auto kAnswerPatience = std::chrono::milliseconds(500);

telemetry::DeviceReading read(core::Device& device) {
    telemetry::DeviceReading reading;
    auto caps = sh_sized<sh_device_caps>();
    device.capabilities(&caps);
    reading.name = device.name();
    reading.description = caps.description;
    reading.link_bytes_per_second = device.known_link_bytes_per_second();
    reading.status = device.memory(&reading.memory);
    reading.clock_ns = device.backend().now_ns();
    return reading;
}

telemetry::RuntimeReading read(const void* handle, core::Runtime& runtime) {
    telemetry::RuntimeReading reading;
    reading.id = reinterpret_cast<uintptr_t>(handle) >> 4;  // what else is in a handle is the same in all
    reading.name = runtime.name();
    runtime.figures().stats(&reading.stats);
    reading.sets = runtime.figures().sets();
    reading.clock_ns = runtime.device().backend().now_ns();
    return reading;
}

}  // namespace

// Devices are read while their slots are locked: one that closes meanwhile must not end up on the control's thread.
std::string stagehand::api::process_snapshot() {
    const auto until = std::chrono::steady_clock::now() + kAnswerPatience;
    telemetry::Snapshot all;
    std::vector<const core::Device*> places;
    const auto place_of = [&](core::Device& device) -> telemetry::DeviceReading& {
        const auto found = std::find(places.begin(), places.end(), &device);
        if (found != places.end()) return all.devices[static_cast<size_t>(found - places.begin())];
        places.push_back(&device);
        return all.devices.emplace_back(read(device));
    };
    all.busy = devices().for_each(until, [&](const void*, OpenDevice& open) { place_of(*open.device); });
    // A device that is closed but for its runtimes is found through them.
    all.busy += runtimes().for_each(until, [&](const void* handle, core::Runtime& runtime) {
        place_of(runtime.device()).runtimes.push_back(read(handle, runtime));
    });
    return telemetry::snapshot_text(all);
}

std::vector<telemetry::RuntimeReading> stagehand::api::runtimes_of(const core::Device& device) {
    std::vector<telemetry::RuntimeReading> readings;
    runtimes().for_each(std::chrono::steady_clock::now() + kAnswerPatience, [&](const void* handle, core::Runtime& at) {
        if (&at.device() == &device) readings.push_back(read(handle, at));
    });
    return readings;
}
