// The sim backend: a device in virtual time, with sizes but no contents, for policies at a scale that no
// machine here has.
#pragma once

#include <stagehand/backend.h>

namespace stagehand::sim {

// Same as a plugin's sh_backend_query().
sh_status query(uint32_t spi_version, const sh_backend_host* services, const sh_backend** out_backend);

// The table. Static.
const sh_backend* sim_backend();

}  // namespace stagehand::sim
