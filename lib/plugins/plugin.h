// Loads one plugin: checks whether its file can be trusted, calls the dynamic linker, and asks the plugin for its
// table.
#pragma once

#include <string>

#include <stagehand/backend.h>

#include "base/status.h"

namespace stagehand::plugins {

// Loads the backend `name` from `path`, which is absolute. A plugin stays in the process for ever, even if it is
// refused after it was loaded.
//
// A file is trusted if it is a regular file, and if the file and its directory belong to root or to the user of the
// process and are not writable by everybody. A sticky directory such as /tmp is not trusted either. `out_exists` is
// always written: it tells whether the file exists.
Status load_plugin(const std::string& path, const std::string& name, const sh_backend_host& services,
                   const sh_backend** out_backend, bool* out_exists);

}  // namespace stagehand::plugins
