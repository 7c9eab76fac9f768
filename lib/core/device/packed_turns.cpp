#include "core/device/packed_turns.h"

#include "base/once_more.h"

namespace stagehand::core {

PackedTurns::~PackedTurns() {
    for (Turn& turn : turns_)
        if (turn.done) (void)once_more([&] { return device_.backend().event_destroy(turn.done); }).ok();
}

Status PackedTurns::open() {
    for (Turn& turn : turns_) SH_TRY(open(turn));
    return Status();
}

Status PackedTurns::open(Turn& turn) {
    if (!turn.lane.is_open()) SH_TRY(device_.lanes().lend(direction_, &turn.lane));
    return turn.done ? Status() : device_.backend().event_create(false, &turn.done);
}

Status PackedTurns::copy(sh_stream lane, const sh_backend_tiles& tiles, std::span<const sh_backend_event> after,
                         bool* out_queued) {
    BackendDevice& device = device_.backend();
    Turn& turn = turns_[next_++ % kTurns];
    SH_TRY(open(turn));
    const sh_stream stream = turn.lane.stream();
    for (const sh_backend_event event : after)
        if (event) SH_TRY(device.stream_wait_event(stream, event));
    SH_TRY(direction_ == transfer::Direction::to_device ? device.unpack_tiles(stream, tiles)
                                                        : device.pack_tiles(stream, tiles));
    *out_queued = true;
    SH_TRY(device.event_record(turn.done, stream));
    return device.stream_wait_event(lane, turn.done);
}

Status PackedTurns::synchronize() {
    Status status;
    for (const Turn& turn : turns_) {
        if (!turn.lane.is_open()) continue;
        Status ended = once_more([&] { return device_.backend().stream_synchronize(turn.lane.stream()); });
        if (status.ok()) status = std::move(ended);
    }
    return status;
}

}  // namespace stagehand::core
