#include "core/spill/spill_lanes.h"

#include <algorithm>

#include "base/once_more.h"

namespace stagehand::core {
namespace {

// Weights stream over the same link. Their copies come between the pieces, so that neither waits for long: about half a
// millisecond of a PCIe link.
constexpr uint64_t kSpillPiece = uint64_t(32) << 20;

// An engine that runs ahead of its device finds no copy ended. It then looks at one in this number.
constexpr uint32_t kLookAtOneIn = 16;

// What the engine is told if a copy may use its memory for ever.
Status unknown_end(const Status& why) {
    return Status(SH_ERROR_DEVICE_LOST, why.text()).within("the driver cannot tell when a copy of a saved tensor ends");
}

}  // namespace

SpillLanes::~SpillLanes() {
    if (fence_) (void)once_more([&] { return device_.event_destroy(fence_); }).ok();
}

Status SpillLanes::open(transfer::Lanes& lanes) {
    SH_TRY(lanes.lend(transfer::Direction::to_host, &to_host_));
    SH_TRY(lanes.lend(transfer::Direction::to_device, &to_device_));
    return device_.event_create(false, &fence_);
}

Status SpillLanes::check_stream(sh_stream stream) {
    SH_TRY(ask_whether_captures(stream));
    checked_ = stream;
    return Status();
}

Status SpillLanes::ask_whether_captures(sh_stream stream) {
    if (stream == SH_STREAM_HOST || !device_.has_graphs()) return Status();
    uint32_t capturing = 0;
    SH_TRY(device_.stream_is_capturing(stream, &capturing));
    if (!capturing) return Status();
    return Status(SH_ERROR_UNSUPPORTED, "the stream captures a graph: saved tensors cannot leave or come back in it");
}

Status SpillLanes::come_after(sh_stream lane, sh_stream stream) {
    if (stream == SH_STREAM_HOST) return Status();
    if (stream != checked_) SH_TRY(ask_whether_captures(stream));  // an older save's stream may capture by now
    SH_TRY(device_.event_record(fence_, stream));
    return device_.stream_wait_event(lane, fence_);
}

// Has a lane wait for a copy of the other lane, whose number there is given, unless it has waited for a later one.
Status SpillLanes::lane_waits(sh_stream lane, sh_backend_event event, uint64_t number, uint64_t* waited_for) {
    if (number <= *waited_for) return Status();
    SH_TRY(device_.stream_wait_event(lane, event));
    *waited_for = number;
    return Status();
}

// Calls copy(offset, bytes) for each piece. If one fails after others were queued, it waits for those.
template <class Copy>
Status SpillLanes::in_pieces(sh_stream lane, uint64_t bytes, bool* doubtful, Copy&& copy) {
    for (uint64_t at = 0; at < bytes; at += kSpillPiece) {
        const Status queued = copy(at, std::min(bytes - at, kSpillPiece));
        if (queued.ok()) continue;
        const Status waited = at ? once_more([&] { return device_.stream_synchronize(lane); }) : Status();
        *doubtful = !waited.ok();
        return *doubtful ? unknown_end(waited) : queued;
    }
    return Status();
}

// Records the event after a copy that was queued. If the driver refuses, the caller waits for the copy instead: an
// event that was not recorded counts as done.
Status SpillLanes::end_of_copy(sh_stream lane, sh_backend_event event, bool* doubtful) {
    const Status recorded = once_more([&] { return device_.event_record(event, lane); });
    if (recorded.ok()) return Status();
    const Status waited = once_more([&] { return device_.stream_synchronize(lane); });
    *doubtful = !waited.ok();
    return waited.ok() ? Status() : unknown_end(waited);
}

Queued SpillLanes::out(SavedCopy& copy) {
    const sh_stream lane = to_host_.stream();
    transfer::PoolBuffer& buffer = *copy.buffer;
    Queued queued;
    queued.status = [&] {
        SH_TRY(come_after(lane, copy.stream));
        SH_TRY(lane_waits(lane, buffer.emptied, buffer.emptying, &returns_waited_for_));
        char* const to = static_cast<char*>(buffer.data);
        SH_TRY(in_pieces(lane, copy.span.bytes, &queued.doubtful, [&](uint64_t at, uint64_t bytes) {
            return device_.copy_to_host(lane, to + at, copy.span.address + at, bytes);
        }));
        return end_of_copy(lane, buffer.filled, &queued.doubtful);
    }();
    return queued;
}

Queued SpillLanes::back(SavedCopy& copy, uint64_t address) {
    const sh_stream lane = to_device_.stream();
    transfer::PoolBuffer& buffer = *copy.buffer;
    Queued queued;
    queued.status = [&] {
        SH_TRY(lane_waits(lane, buffer.filled, copy.departure, &departures_waited_for_));
        const char* const from = static_cast<const char*>(buffer.data);
        SH_TRY(in_pieces(lane, copy.span.bytes, &queued.doubtful, [&](uint64_t at, uint64_t bytes) {
            return device_.copy_to_device(lane, address + at, from + at, bytes);
        }));
        buffer.emptying = ++returns_;
        return end_of_copy(lane, buffer.emptied, &queued.doubtful);
    }();
    return queued;
}

Status SpillLanes::has_left(const SavedCopy& copy, bool* out) {
    uint32_t done = 0;
    SH_TRY(device_.event_query(copy.buffer->filled, &done));
    *out = done;
    return Status();
}

Status SpillLanes::wait_for_out(const SavedCopy& copy, sh_stream stream) { return wait(copy.buffer->filled, stream); }

Status SpillLanes::wait_for_back(const SavedCopy& copy, sh_stream stream) { return wait(copy.buffer->emptied, stream); }

Status SpillLanes::wait(sh_backend_event event, sh_stream stream) {
    if (stream == SH_STREAM_HOST || !BackendDevice::is_of_this_thread(stream)) return wait_on_host(event);
    if (has_ended(event)) return Status();
    stalls_.stream_waits(stream);
    const Status status = device_.stream_wait_event(stream, event);
    stalls_.stream_goes_on(stream);
    return status.ok() ? status : wait_on_host(event);
}

// To look takes one call, and to wait takes three, because the waits are measured.
bool SpillLanes::has_ended(sh_backend_event event) {
    if (!ended_ && ++unasked_ < kLookAtOneIn) return false;
    unasked_ = 0;
    uint32_t done = 0;
    ended_ = device_.event_query(event, &done).ok() && done;
    return ended_;
}

// The caller may free memory afterwards that the copy uses. So a driver that refuses one way to wait is asked for
// another one.
Status SpillLanes::wait_on_host(sh_backend_event event) {
    uint32_t done = 0;
    if (device_.event_query(event, &done).ok() && done) return Status();
    const uint64_t began = device_.now_ns();
    const Status waited = once_more([&] { return device_.event_synchronize(event); });
    if (!waited.ok()) SH_TRY(settle());
    stalls_.host_waited(device_.now_ns() - began);
    return Status();
}

Status SpillLanes::settle() {
    Status status;
    for (const transfer::Lane* lane : {&to_host_, &to_device_}) {
        if (!lane->is_open()) continue;
        const Status ended = once_more([&] { return device_.stream_synchronize(lane->stream()); });
        if (!ended.ok()) status = unknown_end(ended);
    }
    return status;
}

}  // namespace stagehand::core
