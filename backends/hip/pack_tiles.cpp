// As for hashes (content_hash.cpp): the plugin carries no program for the GPU.
#include "gpu/pack_tiles.h"

#include "support/last_error.h"

namespace SH_GPU_NAMESPACE {

sh_status pack_tiles(sh_backend_device*, sh_stream, const sh_backend_tiles*) {
    return support::fail(SH_ERROR_UNSUPPORTED, "the backend packs nothing");
}

sh_status unpack_tiles(sh_backend_device*, sh_stream, const sh_backend_tiles*) {
    return support::fail(SH_ERROR_UNSUPPORTED, "the backend packs nothing");
}

void unload_pack_tiles(Device&) {}

}  // namespace SH_GPU_NAMESPACE
