#include "core/device/copy_lane.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/no_throw.h"
#include "base/once_more.h"

namespace stagehand::core {
namespace {

constexpr size_t kFewTrips = 32;

}  // namespace

CopyLane::~CopyLane() {
    const auto destroy = [&](sh_backend_event event) {
        if (event) (void)once_more([&] { return device_.backend().event_destroy(event); }).ok();
    };
    for (const sh_backend_event event : events_) destroy(event);
    for (const Turn& turn : turns_) destroy(turn.done);
    destroy(fence_);
}

Status CopyLane::open() {
    if (lane_.is_open()) return Status();
    return device_.lanes().lend(direction_, &lane_);
}

Status CopyLane::come_after(sh_stream stream) {
    BackendDevice& device = device_.backend();
    if (!fence_) SH_TRY(device.event_create(false, &fence_));
    SH_TRY(device.event_record(fence_, stream));
    return device.stream_wait_event(lane_.stream(), fence_);
}

Status CopyLane::copy(uint64_t on_device, void* on_host, uint64_t bytes) {
    BackendDevice& device = device_.backend();
    device_.links().of(direction_).note_use(device.now_ns());
    return direction_ == transfer::Direction::to_device
               ? device.copy_to_device(lane_.stream(), on_device, on_host, bytes)
               : device.copy_to_host(lane_.stream(), on_host, on_device, bytes);
}

Status CopyLane::get_ready_to_pack() {
    for (Turn& turn : turns_) SH_TRY(open(turn));
    return Status();
}

Status CopyLane::open(Turn& turn) {
    if (!turn.lane.is_open()) SH_TRY(device_.lanes().lend(direction_, &turn.lane));
    return turn.done ? Status() : device_.backend().event_create(false, &turn.done);
}

// `*out_queued`: something was queued, which a failure does not take back.
Status CopyLane::queue_packed(const sh_backend_tiles& tiles, std::initializer_list<End> after, bool* out_queued) {
    BackendDevice& device = device_.backend();
    Turn& turn = turns_[next_turn_++ % std::size(turns_)];
    SH_TRY(open(turn));
    const sh_stream stream = turn.lane.stream();
    if (fence_) SH_TRY(device.stream_wait_event(stream, fence_));
    for (const End& end : after) SH_TRY(end.lane.precede(stream, end.trip));
    SH_TRY(direction_ == transfer::Direction::to_device ? device.unpack_tiles(stream, tiles)
                                                        : device.pack_tiles(stream, tiles));
    *out_queued = true;
    SH_TRY(device.event_record(turn.done, stream));
    return device.stream_wait_event(lane_.stream(), turn.done);
}

Status CopyLane::copy_packed(const sh_backend_tiles& tiles, std::initializer_list<End> after) {
    device_.links().of(direction_).note_use(device_.backend().now_ns());
    bool queued = false;
    Status status = no_throw([&] { return queue_packed(tiles, after, &queued); });
    if (!status.ok() && queued) (void)synchronize().ok();
    return status;
}

// Looks at a trip in the middle: if it has ended, so have those before it.
void CopyLane::make_room() {
    if (last_ - over_ < events_.size()) return;
    bool ended = false;
    if (!events_.empty() && has_ended(over_ + events_.size() / 2, &ended).ok() && ended) return;
    std::vector<sh_backend_event> more(std::max(kFewTrips, 2 * events_.size()));
    for (transfer::Trip trip = over_ + 1; trip <= last_; trip++) more[(trip - first_) % more.size()] = event_of(trip);
    events_ = std::move(more);
}

Status CopyLane::end_trip(transfer::Trip* out) {
    return no_throw([&] {
        if (over_ == last_) first_ = last_ + 1;  // with the events that there are already
        make_room();
        sh_backend_event& event = events_[place(last_ + 1)];
        if (!event) SH_TRY(device_.backend().event_create(false, &event));
        SH_TRY(record(event));
        *out = ++last_;
        return Status();
    });
}

Status CopyLane::precede(sh_stream stream, transfer::Trip trip) const {
    const sh_backend_event event = event_of(trip);
    return event ? device_.backend().stream_wait_event(stream, event) : Status();
}

Status CopyLane::has_ended(transfer::Trip trip, bool* out) {
    uint32_t done = 1;
    if (const sh_backend_event event = event_of(trip)) SH_TRY(device_.backend().event_query(event, &done));
    *out = done;
    if (done) over_ = std::max(over_, trip);
    return Status();
}

Status CopyLane::wait(transfer::Trip trip) {
    if (const sh_backend_event event = event_of(trip)) SH_TRY(device_.backend().event_synchronize(event));
    over_ = std::max(over_, trip);
    return Status();
}

Status CopyLane::record(sh_backend_event event) {
    return once_more([&] { return device_.backend().event_record(event, lane_.stream()); });
}

// Also of the copies of which the lane could not be told.
Status CopyLane::synchronize() {
    if (!lane_.is_open()) return Status();
    Status status;
    for (const transfer::Lane* const lane : {&turns_[0].lane, &turns_[1].lane, &lane_})
        if (status.ok() && lane->is_open())
            status = once_more([&] { return device_.backend().stream_synchronize(lane->stream()); });
    settled_ = status.ok();
    return status;
}

}  // namespace stagehand::core
