// PinnedMemory: host memory of a given size in huge pages. It is pinned for a device if the system allows it.
#pragma once

#include <cstdint>

#include "backend/backend_device.h"
#include "base/status.h"

namespace stagehand::transfer {

// Anonymous memory that is zeroed. Several threads touch its pages, then it is registered with the device. If the
// driver refuses one registration, the memory is registered in smaller pieces. If the driver refuses the pieces too,
// the memory stays unpinned. The class is move-only.
class PinnedMemory {
public:
    PinnedMemory() = default;
    ~PinnedMemory();
    PinnedMemory(PinnedMemory&& other) noexcept;
    PinnedMemory& operator=(PinnedMemory&& other) noexcept;

    // Returns SH_ERROR_OUT_OF_HOST_MEMORY if the system has no memory, or if the memory would pass the limit of the
    // cgroup.
    static Status allocate(BackendDevice& device, uint64_t bytes, PinnedMemory* out);

    void* data() const { return data_; }
    uint64_t bytes() const { return bytes_; }
    // True if all bytes are pinned.
    bool pinned() const { return pinned_; }
    // Counted from the start.
    uint64_t pinned_bytes() const { return registered_bytes_ < bytes_ ? registered_bytes_ : bytes_; }

    // The size of the registered pieces, counted from the start, or 0 if no piece is registered. Drivers refuse a copy
    // that spans two registrations, or registered and unregistered memory. So the caller cuts copies at multiples of
    // this size.
    uint64_t piece_bytes() const { return registered_piece_; }

    // Returns false if the memory stays for good: the driver does not unpin it, or stray copies may use it.
    bool reset();
    // Forgets the memory without freeing it. For memory that a device may use for ever. reset() does so by itself if
    // stray copies may use the memory.
    void abandon();

private:
    BackendDevice* device_ = nullptr;
    void* data_ = nullptr;
    uint64_t bytes_ = 0;
    uint64_t mapped_bytes_ = 0;      // rounded up to the page size that was used
    uint64_t registered_piece_ = 0;  // size of the registered pieces, or 0 if no piece is registered
    uint64_t registered_bytes_ = 0;  // counted from the start
    uint64_t mark_ = 0;              // see StrayCopies
    bool pinned_ = false;
};

// Pins memory that the library does not own. Used for SH_BLOCK_PIN. The memory is registered in pieces if the driver
// refuses one registration.
//
// Exactly these bytes are registered: drivers pin the pages below the bytes, and count a page that two ranges share
// themselves. Memory that is pinned already (by its owner, or as part of a range that was pinned here) is not
// registered again. A range inside another range that was pinned here keeps the other range pinned. The call pins all
// bytes or none. It returns SH_ERROR_BUSY if the range overlaps a range that was pinned here and cannot share its
// pieces, else the error of the driver. `out_piece_bytes` is `bytes`, or the size of the pieces: the caller cuts copies
// at multiples of it (see above). It is 0 if the owner has pinned the memory, and unpinning does nothing then.
Status pin_foreign(BackendDevice& device, void* memory, uint64_t bytes, uint64_t* out_piece_bytes);
// The caller calls this with the same arguments, once for each success.
void unpin_foreign(BackendDevice& device, void* memory, uint64_t bytes, uint64_t piece_bytes);

}  // namespace stagehand::transfer
