// Packed weights, unpacked on the device.
#pragma once

#include "gpu/device.h"

namespace SH_GPU_NAMESPACE {

// A member of the table, where api::kUnpacks.
sh_status unpack(sh_backend_device* device, sh_stream stream, const sh_backend_packed* packed);
// Frees what unpack() has taken, inside a Scope.
void unload_unpack(Device& device);

}  // namespace SH_GPU_NAMESPACE
