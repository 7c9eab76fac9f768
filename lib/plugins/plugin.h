// Loads one plugin: checks whether its file can be trusted, and calls the dynamic linker. Asks the plugin of a backend
// for its table.
#pragma once

#include <string>

#include <stagehand/backend.h>

#include "base/status.h"

namespace stagehand::plugins {

// Loads the file at `path`, which is absolute, and looks `symbol` up: NULL if the file does not export it. A file stays
// in the process for ever, even if it is refused after it was loaded.
//
// A file is trusted if it is a regular file, and if the file and its directory belong to root or to the user of the
// process and are not writable by everybody. A sticky directory such as /tmp is not trusted either. `out_exists` is
// always written: it tells whether the file exists.
Status load_entry(const std::string& path, const char* symbol, void** out_entry, bool* out_exists);

// Loads the backend `name` in the same way.
Status load_plugin(const std::string& path, const std::string& name, const sh_backend_host& services,
                   const sh_backend** out_backend, bool* out_exists);

}  // namespace stagehand::plugins
