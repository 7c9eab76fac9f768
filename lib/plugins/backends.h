// Finds backends by name, built in or as plugins, and checks them before anything is called.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stagehand/backend.h>

#include "base/status.h"

namespace stagehand::plugins {

// Finds the backend `name` ("host", "cuda", ...). With `explicit_path` (else NULL) only that file is tried;
// otherwise, in this order: what is built in; the directories of STAGEHAND_BACKEND_PATH or, without it, those
// beside the library and the one of the installation. The table stays valid for the life of the process; what
// was found once is found again without looking. SH_ERROR_INVALID_ARGUMENT: `explicit_path` is not absolute.
// SH_ERROR_NOT_FOUND: no file of that name anywhere. SH_ERROR_BACKEND_LOAD: there is one, but it cannot be
// used. The text lists every path that was tried, with what was wrong. `out_path` (may be NULL) gets the
// plugin's file, or nothing for what is built in. Thread-safe. Blocks.
Status find_backend(const char* name, const char* explicit_path, const sh_backend** out_backend,
                    std::string* out_path);

struct ListedBackend {
    std::string name;
    std::string path;  // empty when built in or not found
    bool built_in = false;
    uint32_t device_count = 0;  // 0 unless the status is a success
    Status status;              // whether it can be used here, and why not
};

// The backends that are built in, those that the project has, and whatever else lies in the directories that
// are searched.
std::vector<ListedBackend> list_backends();

}  // namespace stagehand::plugins
