// Compiled once for the shared library, and once for the static library, which holds more backends.
#include "plugins/built_in.h"

#include "host/host_backend.h"
#include "sim/sim_backend.h"

#if STAGEHAND_BUILT_IN_CUDA
namespace stagehand::gpu::inline cuda {
sh_status query(uint32_t spi_version, const sh_backend_host* services, const sh_backend** out_backend);
}
#endif
#if STAGEHAND_BUILT_IN_HIP
namespace stagehand::gpu::inline hip {
sh_status query(uint32_t spi_version, const sh_backend_host* services, const sh_backend** out_backend);
}
#endif

namespace stagehand::plugins {

std::span<const BuiltIn> built_in_backends() {
    static constexpr BuiltIn kBuiltIn[] = {
        {"host", host::query},
        {"sim", sim::query},
#if STAGEHAND_BUILT_IN_CUDA
        {"cuda", gpu::cuda::query},
#endif
#if STAGEHAND_BUILT_IN_HIP
        {"hip", gpu::hip::query},
#endif
    };
    return kBuiltIn;
}

}  // namespace stagehand::plugins
