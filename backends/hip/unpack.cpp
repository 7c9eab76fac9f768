// As for hashes (content_hash.cpp): the plugin carries no program for the GPU.
#include "gpu/unpack.h"

#include "support/last_error.h"

namespace SH_GPU_NAMESPACE {

sh_status unpack(sh_backend_device*, sh_stream, const sh_backend_packed*) {
    return support::fail(SH_ERROR_UNSUPPORTED, "the backend does not unpack weights");
}

void unload_unpack(Device&) {}

}  // namespace SH_GPU_NAMESPACE
