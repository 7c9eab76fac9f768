// How many workers the staging engine has, and how its ring is cut into slots.
#pragma once

#include <cstdint>

#include <stagehand/backend.h>

#include "transfer/staging/staging_engine.h"

namespace stagehand::transfer {

constexpr uint32_t kMostThreads = 64;
constexpr uint64_t kLargestRing = uint64_t(128) << 30;   // what a caller may ask for

struct StagingSize {
    uint32_t threads = 0;
    uint32_t slots = 0;
    uint64_t piece_bytes = 0;  // of sources in a slot
    uint64_t slot_bytes = 0;   // the piece, and room to align what is in it
};

// `threads_variable`: the value of STAGEHAND_STAGING_THREADS or null, in force where the options do not tell
// a number. A value that is no number from 1 to 64 is ignored with a warning.
StagingSize choose_staging_size(const StagingOptions& options, const sh_backend_device_info& info,
                                uint32_t cores, const char* threads_variable);

}  // namespace stagehand::transfer
