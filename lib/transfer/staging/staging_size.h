// Chooses the number of workers of the staging engine, and the number and size of its slots.
#pragma once

#include <cstdint>

#include <stagehand/backend.h>

#include "transfer/staging/staging_engine.h"

namespace stagehand::transfer {

constexpr uint32_t kMostThreads = 64;
constexpr uint64_t kLargestRing = uint64_t(128) << 30;  // the largest size that a caller may ask for

struct StagingSize {
    uint32_t threads = 0;
    uint32_t slots = 0;
    uint64_t piece_bytes = 0;  // source bytes in a slot
    uint64_t slot_bytes = 0;   // the piece, and room to align its contents
};

// `threads_variable` is the value of STAGEHAND_STAGING_THREADS, or null. It counts if the options name no number of
// threads. A value that is not a number from 1 to 64 is ignored with a warning.
StagingSize choose_staging_size(const StagingOptions& options, const sh_backend_device_info& info, uint32_t cores,
                                const char* threads_variable);

// The bytes that a worker reads at once, of so many that are left. If no other load waits, all workers are to have a
// part of them, because the engine may wait for the load. A part has at least `least` bytes, and no more than `most`.
uint64_t fair_piece(uint64_t left, uint32_t workers, uint64_t least, uint64_t most);
// The least part of a load. A smaller one costs a worker more than the reading.
inline constexpr uint64_t kLeastPart = 256 << 10;

}  // namespace stagehand::transfer
