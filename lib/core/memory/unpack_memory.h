// UnpackMemory: device memory through which the packed tensors of a runtime arrive, and in which packed weights stay.
// It is a part of the runtime's share.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "core/device/page_pool.h"
#include "core/memory/kept_weights.h"
#include "transfer/lane/lane.h"
#include "transfer/unpack/unpacker.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class UnpackMemory {
public:
    UnpackMemory(BackendDevice& device, PagePool& pool, transfer::Lanes& lanes)
        : device_(device), pool_(pool), lanes_(lanes), unpacker_(device) {}
    ~UnpackMemory() { (void)free().ok(); }
    UnpackMemory(const UnpackMemory&) = delete;
    UnpackMemory& operator=(const UnpackMemory&) = delete;

    // The pages that a share of this size has for it. 0: the share is too small.
    static uint64_t pages_for(uint64_t share_pages, uint64_t page_bytes);

    // Takes the memory, which is not there yet. On failure nothing is held, unless the driver refuses to take it back.
    Status take(const UnpackPlan& plan);
    // Gives the memory back, if there is any. Loads that use it have ended.
    Status free();
    uint64_t pages() const { return count_; }  // that are held
    const UnpackPlan& plan() const { return plan_; }
    uint64_t kept_address() const { return address_ + plan_.pages * pool_.page_bytes(); }

    transfer::Unpacker& unpacker() { return unpacker_; }

private:
    Status map(uint64_t pages);

    BackendDevice& device_;
    PagePool& pool_;
    transfer::Lanes& lanes_;
    transfer::Unpacker unpacker_;
    std::vector<sh_backend_page> pages_;
    uint64_t address_ = 0, count_ = 0;
    bool mapped_ = false;
    UnpackPlan plan_;  // that the memory was taken for
};

}  // namespace stagehand::core
