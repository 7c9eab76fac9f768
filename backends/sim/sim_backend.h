// The sim backend: a device in virtual time, with sizes but without contents. It tests policies at a scale that no
// machine here has.
#pragma once

#include <stagehand/backend.h>

namespace stagehand::sim {

// See sh_backend_query() of a plugin.
sh_status query(uint32_t spi_version, const sh_backend_host* services, const sh_backend** out_backend);

// The static table of the backend.
const sh_backend* sim_backend();

}  // namespace stagehand::sim
