// CopyLane: a lane of a device, which takes copies between the device and host memory in one direction.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/device/device.h"
#include "core/device/packed_turns.h"
#include "transfer/lane/lane.h"

namespace stagehand::core {

// Copies end in the order in which they were queued. A call that fails has waited for what it had queued. Where the
// driver refuses even that, the lane is not settled, and the memory of any copy may still be used, until synchronize()
// succeeds. One caller at a time, except in synchronize().
class CopyLane {
public:
    CopyLane(Device& device, transfer::Direction direction)
        : device_(device), direction_(direction), turns_(device, direction) {}
    CopyLane(const CopyLane&) = delete;
    CopyLane& operator=(const CopyLane&) = delete;

    // Borrows the lane. May be repeated after a failure.
    Status open();
    bool is_open() const { return lane_.is_open(); }
    // What else is queued there comes between the copies.
    sh_stream stream() const { return lane_.stream(); }

    // Queues a copy between the device and host memory, in the lane's direction.
    Status copy(uint64_t on_device, void* on_host, uint64_t bytes);
    // copy_packed() fails for want of a stream no more.
    Status get_ready_to_pack() { return turns_.open(); }
    // Packs elements into host memory, or unpacks them, in the lane's direction, after these events and beside the copy
    // before it. What the lane is given later comes after it.
    Status copy_packed(const sh_backend_tiles& tiles, std::span<const sh_backend_event> after);
    // Records the event after all copies.
    Status record(sh_backend_event event);
    // Waits on the host for all copies.
    Status synchronize();
    bool is_settled() const { return settled_; }

private:
    Device& device_;
    const transfer::Direction direction_;
    transfer::Lane lane_;
    PackedTurns turns_;
    std::atomic<bool> settled_ = true;
};

}  // namespace stagehand::core
