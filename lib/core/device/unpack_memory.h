// UnpackMemory: device memory through which the packed tensors of a runtime arrive, and in which packed weights stay.
// It is a part of the runtime's share.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "core/device/pool_memory.h"
#include "transfer/lane/lane.h"
#include "transfer/unpack/unpacker.h"

namespace stagehand::core {

// How the packed tensors of a runtime arrive.
struct UnpackPlan {
    uint64_t pages = 0;         // through which they arrive; 0: the host unpacks
    uint64_t kept_pages = 0;    // for chunks that stay
    std::vector<uint8_t> kept;  // for each unit up to the last that has any, the chunks of a period that stay
    bool operator==(const UnpackPlan&) const = default;

    uint64_t all_pages() const { return pages + kept_pages; }
    uint32_t kept_of(size_t unit) const { return unit < kept.size() ? kept[unit] : 0; }
};

// The caller holds the runtime's mutex in all methods.
class UnpackMemory {
public:
    UnpackMemory(BackendDevice& device, PagePool& pool, transfer::Lanes& lanes, transfer::Carrier& carrier)
        : lanes_(lanes), memory_(device, pool), unpacker_(device, carrier) {}
    ~UnpackMemory() { (void)free().ok(); }
    UnpackMemory(const UnpackMemory&) = delete;
    UnpackMemory& operator=(const UnpackMemory&) = delete;

    // The pages that a share of this size has for it. 0: the share is too small.
    static uint64_t pages_for(uint64_t share_pages, uint64_t page_bytes);

    // The chunks that come at once with such a share.
    uint64_t batch_bytes(uint64_t share_pages) const;

    // Takes the memory, which is not there yet. On failure nothing is held, unless the driver refuses to take it back.
    Status take(const UnpackPlan& plan);
    // Gives the memory back, if there is any. Loads that use it have ended.
    Status free();
    uint64_t pages() const { return memory_.pages(); }  // that are held
    const UnpackPlan& plan() const { return plan_; }
    uint64_t kept_address() const { return memory_.address() + unpack_bytes_; }

    transfer::Unpacker& unpacker() { return unpacker_; }
    // Opens an unpacker that records a capture on the same memory. Leaves it closed if there is no memory.
    Status open_to_record(transfer::Unpacker* out);

private:
    transfer::Lanes& lanes_;
    PoolMemory memory_;
    transfer::Unpacker unpacker_;
    UnpackPlan plan_;            // that the memory was taken for
    uint64_t unpack_bytes_ = 0;  // the first bytes of the memory, in which nothing stays
};

}  // namespace stagehand::core
