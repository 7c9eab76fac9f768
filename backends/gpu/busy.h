// Work that occupies a stream of a device for a set time: what stands for a model's computations where only their length matters.
#pragma once

#include "gpu/device.h"

namespace stagehand::gpu {

// Queues it by a program of the plugin's, inside a Scope. *out_queued false: the plugin has none, and nothing was queued.
sh_status queue_busy(Device& device, api::Stream stream, int64_t busy_ns, bool* out_queued);

// Gives back what queue_busy() loaded, inside a Scope; the device's streams are idle.
void unload_busy(Device& device);

}  // namespace stagehand::gpu
