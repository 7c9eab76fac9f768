// PinnedMemory: host memory of exact size in huge pages, pinned for a device where the system allows it.
#pragma once

#include <cstdint>

#include "backend/backend_device.h"
#include "base/status.h"

namespace stagehand::transfer {

// Anonymous memory, touched by several threads, then registered with the device; if that is refused, in
// smaller pieces; if that is refused too, left unpinned. Zeroed. Move-only.
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
    bool pinned() const { return pinned_; }  // all of it
    uint64_t pinned_bytes() const {
        return registered_bytes_ < bytes_ ? registered_bytes_ : bytes_;
    }  // from the start

    // Size of the pieces in which it was registered, from the start; 0: none is. Drivers refuse a copy that
    // spans two registrations, or one and memory that is not registered: cut copies at multiples of it.
    uint64_t piece_bytes() const { return registered_piece_; }

    void reset();
    // Lets go of it without freeing it: for memory that a device may use for ever.
    void abandon();

private:
    BackendDevice* device_ = nullptr;
    void* data_ = nullptr;
    uint64_t bytes_ = 0;
    uint64_t mapped_bytes_ = 0;      // rounded up to the page size that was used
    uint64_t registered_piece_ = 0;  // size of the pieces in which it was registered; 0: none
    uint64_t registered_bytes_ = 0;  // how much of it, from the start
    bool pinned_ = false;
};

// Pins memory that somebody else owns, in pieces where one call is refused. Used for SH_BLOCK_PIN.
//
// Exactly these bytes are registered: drivers pin the pages below them, and count a page that two ranges
// share themselves. Memory that is pinned already (by its owner, or as part of a range pinned here) is not
// registered again; a range inside one that was pinned here keeps that one pinned. All or nothing:
// SH_ERROR_BUSY when it overlaps a range pinned here in part, else the driver's refusal. `out_piece_bytes` is
// `bytes`; or the size of the pieces: cut copies at multiples of it (see above); or 0 when its owner has
// pinned it, and unpinning has nothing to do.
Status pin_foreign(BackendDevice& device, void* memory, uint64_t bytes, uint64_t* out_piece_bytes);
// With the same arguments, once for each success.
void unpin_foreign(BackendDevice& device, void* memory, uint64_t bytes, uint64_t piece_bytes);

}  // namespace stagehand::transfer
