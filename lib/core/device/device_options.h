// DeviceOptions: what a caller passes for a device, and its checks.
#pragma once

#include <stagehand/device.h>

#include "base/status.h"

namespace stagehand::core {

// The pointers of `device` to the other two are not used.
struct DeviceOptions {
    sh_device_options device = SH_DEVICE_OPTIONS_INIT;
    sh_host_options host = SH_HOST_OPTIONS_INIT;
    sh_helper_options helpers = SH_HELPER_OPTIONS_INIT;
};

// SH_ERROR_INVALID_ARGUMENT names the option that is out of range.
Status check_options(const DeviceOptions& all);

// Checks a link's speed in the options of any call. 0 means that the speed is not given.
Status check_link_speed(uint64_t bytes_per_second);

}  // namespace stagehand::core
