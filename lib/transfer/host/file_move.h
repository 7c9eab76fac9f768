// FileMove: reads and writes large pieces of a StagingRange, many requests at once through io_uring.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "transfer/host/staging_file.h"
#include "transfer/source/uring.h"

namespace stagehand::transfer {

// Used by one thread.
class FileMove {
public:
    // `memory`, `bytes` and `offset` are multiples of the system's page.
    Status write(StagingRange& range, void* memory, uint64_t bytes, uint64_t offset);
    Status read(StagingRange& range, void* memory, uint64_t bytes, uint64_t offset);

private:
    Status move(StagingRange& range, bool writing, char* memory, uint64_t bytes, uint64_t offset);
    Status move_rest(StagingRange& range, bool writing, char* memory, uint64_t bytes, uint64_t offset);
    Status move_by_ring(StagingRange& range, bool writing, char* memory, uint64_t bytes, uint64_t offset);
    bool has_ring();

    Uring ring_;
    enum class Ring : uint8_t { unknown, open, refused } state_ = Ring::unknown;
};

}  // namespace stagehand::transfer
