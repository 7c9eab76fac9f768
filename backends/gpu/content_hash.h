// Hashes of contents, made on the device.
#pragma once

#include "gpu/device.h"

namespace SH_GPU_NAMESPACE {

// A member of the table, where api::kHashesContents.
sh_status contents_hash(sh_backend_device* device, sh_stream stream, uint64_t count, const sh_backend_range* ranges,
                        sh_backend_digest* out_digests);
// Frees what contents_hash() has taken, inside a Scope.
void unload_content_hash(Device& device);

}  // namespace SH_GPU_NAMESPACE
