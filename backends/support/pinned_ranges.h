// PinnedRanges: the host memory that is registered with a device, in pages.
#pragma once

#include <cstdint>
#include <map>
#include <shared_mutex>

#include <stagehand/base.h>

namespace stagehand::support {

// Thread-safe. A page cannot be registered twice, as with real drivers.
class PinnedRanges {
public:
    // Refuses more than `limit` bytes in total with SH_ERROR_OUT_OF_HOST_MEMORY. 0 means no limit.
    explicit PinnedRanges(uint64_t limit) : limit_(limit) {}

    sh_status add(const void* memory, uint64_t bytes);
    // `memory` is the pointer that was given to add().
    sh_status remove(const void* memory);
    // Returns true if every byte lies in registered pages, of one registration or of several neighbours.
    bool contains(const void* memory, uint64_t bytes) const;
    uint64_t bytes() const;

private:
    struct Range {
        uint64_t end = 0;
        uint64_t given = 0;  // the address that add() was called with
    };

    const uint64_t limit_;
    mutable std::shared_mutex mutex_;
    std::map<uint64_t, Range> ranges_;  // by first byte
    uint64_t bytes_ = 0;
};

}  // namespace stagehand::support
