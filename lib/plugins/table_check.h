// Checks a backend's table before its first call, and checks the values that the backend reports of a device.
#pragma once

#include <string>

#include <stagehand/backend.h>

#include "base/status.h"

namespace stagehand::plugins {

// Checks the version, name, size and required members. The result is a complete copy of the table that lives as long as
// the process. Optional members that the table is too short for are NULL in the copy.
Status check_table(const sh_backend* table, const std::string& name, const sh_backend** out_backend);

// Returns SH_ERROR_BACKEND with the backend and the wrong field in its text.
Status check_device(const std::string& backend, const sh_backend_device_info& info);

}  // namespace stagehand::plugins
