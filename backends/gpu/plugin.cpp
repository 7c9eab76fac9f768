// The exported symbol of a plugin. A static library calls query() instead.
#include "gpu/device.h"

extern "C" SH_API sh_status sh_backend_query(uint32_t spi_version, const sh_backend_host* host,
                                             const sh_backend** out_backend) {
    return stagehand::gpu::query(spi_version, host, out_backend);
}
