#include "core/spill/spill_lanes.h"

#include <algorithm>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/once_more.h"
#include "core/spill/packed_copies.h"

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

SpillLanes::SpillLanes(Device& device)
    : device_(device.backend()),
      to_host_(device, transfer::Direction::to_host),
      to_device_(device, transfer::Direction::to_device),
      stalls_(device.backend()) {}

Status SpillLanes::open(bool packs) {
    SH_TRY(to_host_.open());
    SH_TRY(to_device_.open());
    if (packs) {
        const Status tried = no_throw([&] { return try_packing(device_, to_host_.stream()); });
        if (!tried.ok()) log_line(SH_LOG_INFO, "saved tensors cross the link as they are: %s", tried.text());
        packs_ = tried.ok();
    }
    return Status();
}

bool SpillLanes::packs(const SavedCopy& copy) const { return packs_ && may_be_packed(copy); }

// A stream of an earlier call may capture by now.
void SpillLanes::begin_call() { checked_ = SH_STREAM_HOST; }

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

Status SpillLanes::come_after(CopyLane& lane, sh_stream stream) {
    if (stream == SH_STREAM_HOST) return Status();
    if (stream != checked_) SH_TRY(ask_whether_captures(stream));  // an older save's stream may capture by now
    return lane.come_after(stream);
}

Status SpillLanes::leave_after(const StreamSet& streams) {
    SH_TRY(streams.for_each([&](sh_stream stream) { return come_after(to_host_, stream); }));
    return streams.size() > 1 ? to_host_.after_all() : Status();
}

// Has a lane wait for a trip of the other lane, unless it has waited for a later one.
Status SpillLanes::lane_waits(CopyLane& lane, const CopyLane& other, transfer::Trip trip, transfer::Trip* waited_for) {
    if (trip <= *waited_for) return Status();
    SH_TRY(lane.come_after(other, trip));
    *waited_for = trip;
    return Status();
}

// If one piece fails after others were queued, waits for those.
Status SpillLanes::in_pieces(CopyLane& lane, uint64_t address, transfer::PoolBuffer& buffer, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += kSpillPiece) {
        const Status queued = no_throw([&] {
            return lane.copy(address + at, static_cast<char*>(buffer.data) + at, std::min(bytes - at, kSpillPiece));
        });
        if (queued.ok()) continue;
        const Status waited = at ? lane.synchronize() : Status();
        return waited.ok() ? queued : unknown_end(waited);
    }
    return Status();
}

// If the driver records no event after the copy, the caller waits for the copy instead.
Status SpillLanes::end_trip(CopyLane& lane, transfer::Trip* out) {
    if (lane.end_trip(out).ok()) return Status();
    *out = 0;
    const Status waited = lane.synchronize();
    return waited.ok() ? Status() : unknown_end(waited);
}

Status SpillLanes::out(SavedCopy& copy) {
    transfer::PoolBuffer& buffer = *copy.buffer;
    return no_throw([&] {
        SH_TRY(leave_after(copy.streams));
        SH_TRY(lane_waits(to_host_, to_device_, buffer.emptied, &returns_waited_for_));
        // The copy before may still be under way. It is another's, or on its way into this buffer if its tensor was
        // released.
        SH_TRY(copy.packed ? packed(to_host_, tiles_of(copy, copy.span.address),
                                    {{to_device_, buffer.emptied}, {to_host_, buffer.filled}})
                           : in_pieces(to_host_, copy.span.address, buffer, copy.span.bytes));
        SH_TRY(end_trip(to_host_, &buffer.filled));
        copy.departure = buffer.filled;
        return Status();
    });
}

Status SpillLanes::packed(CopyLane& lane, const sh_backend_tiles& tiles, std::initializer_list<CopyLane::End> after) {
    const Status status = lane.copy_packed(tiles, after);
    return status.ok() || lane.is_settled() ? status : unknown_end(status);
}

Status SpillLanes::come_back_after(sh_stream stream) { return come_after(to_device_, stream); }

Status SpillLanes::back(SavedCopy& copy, uint64_t address) {
    transfer::PoolBuffer& buffer = *copy.buffer;
    return no_throw([&] {
        SH_TRY(lane_waits(to_device_, to_host_, buffer.filled, &departures_waited_for_));
        SH_TRY(copy.packed ? packed(to_device_, tiles_of(copy, address), {{to_host_, buffer.filled}})
                           : in_pieces(to_device_, address, buffer, copy.span.bytes));
        return end_trip(to_device_, &buffer.emptied);
    });
}

Status SpillLanes::has_left(const SavedCopy& copy, bool* out) { return to_host_.has_ended(copy.buffer->filled, out); }

Status SpillLanes::wait_for_out(const SavedCopy& copy, sh_stream stream) {
    return wait(to_host_, copy.buffer->filled, stream);
}

Status SpillLanes::wait_for_back(const SavedCopy& copy, sh_stream stream) {
    return wait(to_device_, copy.buffer->emptied, stream);
}

Status SpillLanes::wait(CopyLane& lane, transfer::Trip trip, sh_stream stream) {
    if (stream == SH_STREAM_HOST || !BackendDevice::is_of_this_thread(stream)) return wait_on_host(lane, trip);
    if (has_ended(lane, trip)) return Status();
    stalls_.stream_waits(stream);
    const Status status = lane.precede(stream, trip);
    stalls_.stream_goes_on(stream);
    return status.ok() ? status : wait_on_host(lane, trip);
}

// To look takes one call, and to wait takes three, because the waits are measured.
bool SpillLanes::has_ended(CopyLane& lane, transfer::Trip trip) {
    if (lane.is_known_to_have_ended(trip)) return true;
    if (!ended_ && ++unasked_ < kLookAtOneIn) return false;
    unasked_ = 0;
    ended_ = false;
    return lane.has_ended(trip, &ended_).ok() && ended_;
}

// The caller may free memory afterwards that the copy uses. So a driver that refuses one way to wait is asked for
// another one.
Status SpillLanes::wait_on_host(CopyLane& lane, transfer::Trip trip) {
    bool ended = false;
    if (lane.has_ended(trip, &ended).ok() && ended) return Status();
    const uint64_t began = device_.now_ns();
    const Status waited = once_more([&] { return lane.wait(trip); });
    if (!waited.ok()) SH_TRY(settle());
    stalls_.host_waited(device_.now_ns() - began);
    return Status();
}

Status SpillLanes::settle(const transfer::PoolBuffer& buffer) {
    SH_TRY(once_more([&] { return to_host_.wait(buffer.filled); }));
    return once_more([&] { return to_device_.wait(buffer.emptied); });
}

Status SpillLanes::settle() {
    Status status;
    for (CopyLane* const lane : {&to_host_, &to_device_}) {
        const Status ended = lane->synchronize();
        if (!ended.ok()) status = unknown_end(ended);
    }
    return status;
}

}  // namespace stagehand::core
