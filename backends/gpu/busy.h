// Work that occupies a stream of a device for a given time. It replaces the computations of a model if only their
// length matters.
#pragma once

#include "gpu/device.h"

namespace SH_GPU_NAMESPACE {

// Queues the work as a program of the plugin, inside a Scope. Sets *out_queued to false and queues nothing if the
// plugin has no such program.
sh_status queue_busy(Device& device, api::Stream stream, int64_t busy_ns, bool* out_queued);

// Frees the program that queue_busy() loaded, inside a Scope. The device's streams must be idle.
void unload_busy(Device& device);

}  // namespace SH_GPU_NAMESPACE
