// PinnedRanges: the host memory that was registered with a device, page by page.
#pragma once

#include <cstdint>
#include <map>
#include <shared_mutex>

#include <stagehand/base.h>

namespace stagehand::support {

// Thread-safe. Registering a page twice is refused, as drivers do.
class PinnedRanges {
public:
    // More than `limit` bytes in all are refused with SH_ERROR_OUT_OF_HOST_MEMORY; 0: no limit.
    explicit PinnedRanges(uint64_t limit) : limit_(limit) {}

    sh_status add(const void* memory, uint64_t bytes);
    // `memory` is the pointer that was given to add().
    sh_status remove(const void* memory);
    // Whether every byte lies in registered pages, be it of one registration or of several neighbours.
    bool contains(const void* memory, uint64_t bytes) const;
    uint64_t bytes() const;

private:
    struct Range {
        uint64_t end = 0;
        uint64_t given = 0;  // the address as it was given
    };

    const uint64_t limit_;
    mutable std::shared_mutex mutex_;
    std::map<uint64_t, Range> ranges_;  // by first byte
    uint64_t bytes_ = 0;
};

}  // namespace stagehand::support
