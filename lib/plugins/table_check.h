// Checks a backend's table before anything in it is called.
#pragma once

#include <string>

#include <stagehand/backend.h>

#include "base/status.h"

namespace stagehand::plugins {

// Version, name, size and required members. The result is a copy that is complete in this library's terms
// (optional members that the table is too short for are NULL) and lives as long as the process.
Status check_table(const sh_backend* table, const std::string& name, const sh_backend** out_backend);

}  // namespace stagehand::plugins
