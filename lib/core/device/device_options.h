// Checks of the options that a caller passes for a device.
#pragma once

#include <stagehand/device.h>

#include "base/status.h"

namespace stagehand::core {

// SH_ERROR_INVALID_ARGUMENT names the option that is out of range.
Status check_options(const sh_device_options& options);

// Checks a link's speed in the options of any call. 0 means that the speed is not given.
Status check_link_speed(uint64_t bytes_per_second);

}  // namespace stagehand::core
