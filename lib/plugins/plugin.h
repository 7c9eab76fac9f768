// Loading one plugin: whether its file can be trusted, the dynamic linker, and the plugin's answer.
#pragma once

#include <string>

#include <stagehand/backend.h>

#include "base/status.h"

namespace stagehand::plugins {

// Loads the backend `name` from `path`, which is absolute. A plugin stays in the process for ever, also one
// that was refused after it was loaded. Trusted is a regular file which, like the directory that it lies in,
// belongs to root or to the user of the process, and which not everybody may write to; a sticky directory
// such as /tmp is no exception. `out_exists` is written in any case: whether there is such a file.
Status load_plugin(const std::string& path, const std::string& name, const sh_backend_host& services,
                   const sh_backend** out_backend, bool* out_exists);

}  // namespace stagehand::plugins
