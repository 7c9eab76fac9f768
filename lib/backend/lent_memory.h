// Device memory that the engine lends to the library, in place of the driver's.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "base/status.h"

namespace stagehand {

// Gives parts of one range, the first that fits. Thread-safe.
class LentMemory {
public:
    LentMemory(uint64_t address, uint64_t bytes) : bytes_(bytes), free_(bytes), gaps_{{address, bytes}} {}

    // `alignment` is a power of two. SH_ERROR_OUT_OF_DEVICE_MEMORY if no gap is large enough.
    Status take(uint64_t bytes, uint64_t alignment, uint64_t* out_address);
    // With what take() gave. If host memory is missing, the range is never given again.
    Status give_back(uint64_t address, uint64_t bytes);

    uint64_t bytes() const { return bytes_; }
    uint64_t free_bytes() const;

private:
    Status take_first(uint64_t bytes, uint64_t alignment, uint64_t* out_address);
    Status add_gap(uint64_t address, uint64_t bytes);

    const uint64_t bytes_;
    mutable std::mutex mutex_;  // guards what follows
    uint64_t free_;
    std::map<uint64_t, uint64_t> gaps_;  // sizes by address; no two gaps touch
};

}  // namespace stagehand
