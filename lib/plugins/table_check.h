// Checks a backend's table before anything in it is called, and what it says of a device before anybody counts with it.
#pragma once

#include <string>

#include <stagehand/backend.h>

#include "base/status.h"

namespace stagehand::plugins {

// Version, name, size and required members. The result is a copy that is complete in this library's terms
// (optional members that the table is too short for are NULL) and lives as long as the process.
Status check_table(const sh_backend* table, const std::string& name, const sh_backend** out_backend);

// SH_ERROR_BACKEND names the backend and the field that cannot be true.
Status check_device(const std::string& backend, const sh_backend_device_info& info);

}  // namespace stagehand::plugins
