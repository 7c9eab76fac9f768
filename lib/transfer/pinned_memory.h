// PinnedMemory: host memory of exact size in huge pages, pinned for a device where the system allows it.
#pragma once

#include <cstdint>

#include "backend/backend_device.h"
#include "base/status.h"

namespace stagehand::transfer {

// Anonymous memory, touched by several threads, then registered with the device; if that is refused, in smaller pieces; if that
// is refused too, left unpinned. Zeroed. Move-only.
class PinnedMemory {
public:
    PinnedMemory() = default;
    ~PinnedMemory();
    PinnedMemory(PinnedMemory&& other) noexcept;
    PinnedMemory& operator=(PinnedMemory&& other) noexcept;

    // SH_ERROR_OUT_OF_HOST_MEMORY when the memory itself cannot be had (or would pass the cgroup's limit).
    static Status allocate(BackendDevice& device, uint64_t bytes, PinnedMemory* out);

    void* data() const { return data_; }
    uint64_t bytes() const { return bytes_; }
    bool pinned() const { return pinned_; }   // all of it

    void reset();

private:
    BackendDevice* device_ = nullptr;
    void* data_ = nullptr;
    uint64_t bytes_ = 0;
    uint64_t mapped_bytes_ = 0;       // rounded up to the page size that was used
    uint64_t registered_piece_ = 0;   // size of the pieces in which it was registered; 0: none
    uint64_t registered_bytes_ = 0;   // how much of it, from the start
    bool pinned_ = false;
};

// Pins memory that somebody else owns, in pieces where one call is refused. Used for SH_BLOCK_PIN.
Status pin_foreign(BackendDevice& device, void* memory, uint64_t bytes, uint64_t* out_piece_bytes);
void unpin_foreign(BackendDevice& device, void* memory, uint64_t bytes, uint64_t piece_bytes);

}  // namespace stagehand::transfer
