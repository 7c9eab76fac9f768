// Finds backends by name, built in or as plugins, and checks their tables before any call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stagehand/backend.h>

#include "base/status.h"

namespace stagehand::plugins {

// Finds the backend `name` ("host", "cuda", ...). If `explicit_path` is not NULL, only that file is tried. Otherwise
// the search begins with the built-in backends. Then come the directories of STAGEHAND_BACKEND_PATH, or, if it is not
// set, the directories beside the library and the directory of the installation. The table stays valid for the life of
// the process, and later calls find it without a search.
//
// Returns SH_ERROR_INVALID_ARGUMENT if `explicit_path` is not absolute, SH_ERROR_NOT_FOUND if the name is not valid or
// no directory has such a file, and SH_ERROR_BACKEND_LOAD if a file cannot be used or `explicit_path` is missing. The
// last two texts list every path that was tried, with the reason. `out_path` (may be NULL) gets the plugin's file, or
// an empty text for a built-in backend. Thread-safe. The call may block.
Status find_backend(const char* name, const char* explicit_path, const sh_backend** out_backend, std::string* out_path);

struct ListedBackend {
    std::string name;
    std::string path;  // empty if built in or not found
    bool built_in = false;
    uint32_t device_count = 0;  // 0 if the status is a failure
    Status status;              // whether the backend can be used here, and why not
};

// Lists the built-in backends, the plugins of the project, and all other plugins in the search directories.
std::vector<ListedBackend> list_backends();

}  // namespace stagehand::plugins
