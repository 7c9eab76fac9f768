// A host function waits instead of a GPU program. HIP's driver takes only programs that are translated for one kind of
// GPU, and the plugin carries none.
#include "gpu/busy.h"

namespace SH_GPU_NAMESPACE {

sh_status queue_busy(Device&, api::Stream, int64_t, bool* out_queued) {
    *out_queued = false;
    return SH_OK;
}

void unload_busy(Device&) {}

}  // namespace SH_GPU_NAMESPACE
