// What a caller may ask of a device.
#pragma once

#include <stagehand/device.h>

#include "base/status.h"

namespace stagehand::core {

// SH_ERROR_INVALID_ARGUMENT names the option that is out of range.
Status check_options(const sh_device_options& options);

// The same of a link's speed, 0 (not told) included, in the options of any call.
Status check_link_speed(uint64_t bytes_per_second);

}  // namespace stagehand::core
