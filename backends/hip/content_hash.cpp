// HIP's driver takes only programs that are translated for one kind of GPU, and the plugin carries none.
#include "gpu/content_hash.h"

#include "support/last_error.h"

namespace SH_GPU_NAMESPACE {

sh_status contents_hash(sh_backend_device*, sh_stream, uint64_t, const sh_backend_range*, sh_backend_digest*) {
    return support::fail(SH_ERROR_UNSUPPORTED, "the backend does not hash contents");
}

void unload_content_hash(Device&) {}

}  // namespace SH_GPU_NAMESPACE
