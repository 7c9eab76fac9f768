#include "core/device/copy_lane.h"

#include "base/no_throw.h"
#include "base/once_more.h"

namespace stagehand::core {

Status CopyLane::open() {
    if (lane_.is_open()) return Status();
    return device_.lanes().lend(direction_, &lane_);
}

Status CopyLane::copy(uint64_t on_device, void* on_host, uint64_t bytes) {
    BackendDevice& device = device_.backend();
    device_.links().of(direction_).note_use(device.now_ns());
    return direction_ == transfer::Direction::to_device
               ? device.copy_to_device(lane_.stream(), on_device, on_host, bytes)
               : device.copy_to_host(lane_.stream(), on_host, on_device, bytes);
}

Status CopyLane::copy_packed(const sh_backend_tiles& tiles, std::span<const sh_backend_event> after) {
    device_.links().of(direction_).note_use(device_.backend().now_ns());
    bool queued = false;
    Status status = no_throw([&] { return turns_.copy(lane_.stream(), tiles, after, &queued); });
    if (!status.ok() && queued) (void)synchronize().ok();
    return status;
}

Status CopyLane::record(sh_backend_event event) {
    return once_more([&] { return device_.backend().event_record(event, lane_.stream()); });
}

Status CopyLane::synchronize() {
    if (!lane_.is_open()) return Status();
    Status status = turns_.synchronize();
    if (status.ok()) status = once_more([&] { return device_.backend().stream_synchronize(lane_.stream()); });
    settled_ = status.ok();
    return status;
}

}  // namespace stagehand::core
