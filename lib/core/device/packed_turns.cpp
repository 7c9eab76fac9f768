#include "core/device/packed_turns.h"

#include "base/once_more.h"

namespace stagehand::core {

PackedTurns::~PackedTurns() {
    for (Side& side : sides_)
        if (side.done) (void)once_more([&] { return device_.backend().event_destroy(side.done); }).ok();
}

Status PackedTurns::open() {
    for (Side& side : sides_) SH_TRY(open(side));
    return Status();
}

Status PackedTurns::open(Side& side) {
    if (!side.lane.is_open()) SH_TRY(device_.lanes().lend(direction_, &side.lane));
    return side.done ? Status() : device_.backend().event_create(false, &side.done);
}

Status PackedTurns::copy(sh_stream lane, const sh_backend_tiles& tiles, std::span<const sh_backend_event> after,
                         bool* out_queued) {
    BackendDevice& device = device_.backend();
    Side& side = sides_[next_++ % kSides];
    SH_TRY(open(side));
    const sh_stream stream = side.lane.stream();
    for (const sh_backend_event event : after)
        if (event) SH_TRY(device.stream_wait_event(stream, event));
    SH_TRY(direction_ == transfer::Direction::to_device ? device.unpack_tiles(stream, tiles)
                                                        : device.pack_tiles(stream, tiles));
    *out_queued = true;
    SH_TRY(device.event_record(side.done, stream));
    return device.stream_wait_event(lane, side.done);
}

Status PackedTurns::synchronize() {
    Status status;
    for (const Side& side : sides_) {
        if (!side.lane.is_open()) continue;
        Status ended = once_more([&] { return device_.backend().stream_synchronize(side.lane.stream()); });
        if (status.ok()) status = std::move(ended);
    }
    return status;
}

}  // namespace stagehand::core
