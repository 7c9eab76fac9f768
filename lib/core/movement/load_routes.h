// LoadRoutes: sends each part of a load on the route of its source.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/memory/registry.h"
#include "core/movement/load.h"
#include "transfer/carrier/carrier.h"
#include "transfer/route/straight_route.h"
#include "transfer/unpack/unpacker.h"

namespace stagehand::core {

class LoadRoutes {
public:
    LoadRoutes(BackendDevice& device, Registry& registry, transfer::Carrier& carrier)
        : device_(device), registry_(registry), carrier_(carrier) {}

    // Sets the load for the following calls. Its events to wait for must be known.
    void begin(Load* load);
    // Adds bytes [offset, end) of the unit. They may be written after `waits`.
    void add(Unit& unit, uint64_t offset, uint64_t end, transfer::Waits waits);
    // Leaves small straight copies to the workers if there are many.
    void leave_small() { straight_.leave_small(&load_->staged.extents); }
    // Brings packed tensors to the device packed while the unpacker is open. Without one the workers unpack them.
    void set_unpacker(transfer::Unpacker* unpacker) { unpacker_ = unpacker; }
    bool unpacks() const { return unpacker_ && unpacker_->is_open(); }
    Status synchronize_unpacker() { return unpacker_ ? unpacker_->synchronize() : Status(); }
    // Cuts the packed tensors that workers read, so that so many of them have a part. No batch is larger than
    // `piece_bytes`.
    void cut_staged(uint64_t piece_bytes, uint32_t workers);
    // Queues the copies of the straight route, and of packed tensors in pinned memory.
    Status issue_straight(sh_stream stream, transfer::CopyMeter* meter = nullptr);
    // Makes the stream wait for the uses of the pages to which nothing is copied. Called when all copies are queued.
    // The on_load callback may write these pages, and a later writer of them waits only for this load's unit.
    static Status issue_rest(BackendDevice& device, sh_stream stream, Load* load);

private:
    BackendDevice& device_;
    Registry& registry_;
    transfer::Carrier& carrier_;
    Load* load_ = nullptr;
    transfer::StraightRoute straight_;
    transfer::Unpacker* unpacker_ = nullptr;
    std::vector<transfer::PackedExtent> packed_;
};

}  // namespace stagehand::core
