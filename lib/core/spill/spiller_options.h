// The options of a spiller, checked and with their defaults filled in.
#pragma once

#include <cstdint>
#include <vector>

#include <stagehand/spill.h>

#include "base/status.h"
#include "policy/watermarks.h"
#include "transfer/host/class_pool.h"

namespace stagehand::core {

struct SpillerOptions {
    policy::KeepLimits keep;
    uint64_t least_bytes = 0;
    uint64_t to_host_bytes = 0;
    uint64_t to_device_bytes = 0;
    uint32_t to_host_copies = 0;    // UINT32_MAX: no bound
    uint32_t to_device_copies = 0;  // UINT32_MAX: no bound
    uint64_t pool_bytes = 0;
    std::vector<transfer::SizeClass> classes;
    bool checksums = false;
    bool packs = false;
};

// SH_ERROR_INVALID_ARGUMENT names the option that is out of range. `classes` are the elements of options.classes.
Status read_spiller_options(const sh_spiller_options& options, const std::vector<sh_spill_class>& classes,
                            SpillerOptions* out);

}  // namespace stagehand::core
