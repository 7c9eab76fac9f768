// The error of a plugin that is not loaded.
#pragma once

#include <string>
#include <utility>

#include "base/status.h"

namespace stagehand::plugins {

inline Status refused(std::string reason) { return Status(SH_ERROR_BACKEND_LOAD, std::move(reason)); }

}  // namespace stagehand::plugins
