// What a control tells of the whole process when somebody asks: every open device and every runtime, each for a moment.
#pragma once

#include <string>
#include <vector>

#include "api/guard.h"
#include "telemetry/snapshot.h"

namespace stagehand::api {

// The document of docs/telemetry.md. Takes each runtime's lock for a moment.
std::string process_snapshot();

// The runtimes of a device as in that document; without those that are in use all the time.
std::vector<telemetry::RuntimeReading> runtimes_of(const core::Device& device);

}  // namespace stagehand::api
