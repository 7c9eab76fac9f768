// Elements that leave for host memory packed, and come back.
#pragma once

#include "gpu/device.h"

namespace SH_GPU_NAMESPACE {

// Members of the table, where api::kPacksTiles.
sh_status pack_tiles(sh_backend_device* device, sh_stream stream, const sh_backend_tiles* tiles);
sh_status unpack_tiles(sh_backend_device* device, sh_stream stream, const sh_backend_tiles* tiles);
// Frees what they have taken, inside a Scope.
void unload_pack_tiles(Device& device);

}  // namespace SH_GPU_NAMESPACE
