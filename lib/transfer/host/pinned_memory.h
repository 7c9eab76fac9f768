// PinnedMemory: host memory of a given size in huge pages. It is pinned for a device if the system allows it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/host/host_pages.h"

namespace stagehand::transfer {

// Anonymous memory that is zeroed. Several threads touch its pages, then it is registered with the device. If the
// driver refuses one registration, the memory is registered in smaller pieces. If the driver refuses the pieces too,
// the memory stays unpinned.
class PinnedMemory : public HostPages {
public:
    // Returns SH_ERROR_OUT_OF_HOST_MEMORY if the system has no memory, or if the memory would pass the limit of the
    // cgroup.
    static Status allocate(BackendDevice& device, uint64_t bytes, PinnedMemory* out);

    uint64_t bytes() const { return at_.bytes; }
    // True if all bytes are pinned.
    bool pinned() const { return at_.data && at_.registration.registered_bytes == at_.mapped_bytes; }
    // Counted from the start.
    uint64_t pinned_bytes() const { return std::min(at_.registration.registered_bytes, at_.bytes); }

    // The size of the registered pieces, counted from the start, or 0 if no piece is registered. Drivers refuse a copy
    // that spans two registrations, or registered and unregistered memory. So the caller cuts copies at multiples of
    // this size.
    uint64_t piece_bytes() const { return at_.registration.piece_bytes; }
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
