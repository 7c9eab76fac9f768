#include "transfer/carrier/relay.h"

#include <algorithm>
#include <string>

#include "backend/stray_copies.h"
#include "base/once_more.h"
#include "transfer/carrier/issue.h"

namespace stagehand::transfer {
namespace {

constexpr uint64_t kRelayAlignment = 256;

}  // namespace

Relay::~Relay() {
    bool over = false;
    (void)close(&over).ok();
}

Status Relay::open(Lanes& lanes, Lanes& helper_lanes, uint64_t address, uint64_t bytes) {
    const Status status = make(lanes, helper_lanes, address, bytes);
    if (!status.ok()) forget();
    return status;
}

Status Relay::make(Lanes& lanes, Lanes& helper_lanes, uint64_t address, uint64_t bytes) {
    slot_bytes_ = bytes / kSlots / kRelayAlignment * kRelayAlignment;
    if (!slot_bytes_) return Status(SH_ERROR_INTERNAL, "the buffer of a relay is too small");
    next_ = 0;
    last_ = 0;
    pending_[0] = pending_[1] = false;
    settled_ = true;
    helper_failed_ = at_work_ = false;
    SH_TRY(lanes.lend(Direction::to_device, &across_.lane));
    SH_TRY(helper_lanes.lend(Direction::to_device, &link_.lane));
    for (uint32_t i = 0; i < kSlots; i++) {
        slots_[i].address = address + i * slot_bytes_;
        SH_TRY(helper_.event_create(false, &slots_[i].filled));
        SH_TRY(device_.event_create(false, &slots_[i].emptied));
    }
    return Status();
}

void Relay::forget() {
    for (Slot& slot : slots_) {
        if (slot.filled) (void)once_more([&] { return helper_.event_destroy(slot.filled); }).ok();
        if (slot.emptied) (void)once_more([&] { return device_.event_destroy(slot.emptied); }).ok();
        slot = {};
    }
    across_.lane = Lane();
    link_.lane = Lane();
}

Status Relay::close(bool* out_over) {
    *out_over = true;
    if (!is_open()) return Status();
    *out_over = false;
    SH_TRY(settle());
    *out_over = once_more([&] { return helper_.stream_synchronize(link_.stream()); }).ok();
    forget();
    return Status();
}

Status Relay::settle() {
    SH_TRY(wait_for(streams()));
    settled_ = true;
    pending_[0] = pending_[1] = false;
    return Status();
}

// A helper that does not answer any more may still fill slots from host memory, but the device copies nothing from
// them. That is over if it is lost.
Status Relay::wait_for(Streams streams) {
    Status helper = helper_.stream_synchronize(streams.of_helper);
    if (!helper.ok()) {  // the error may be that of a copy, and a second call hides it
        helper_failed_ = true;
        helper = helper_.stream_synchronize(streams.of_helper);
    }
    if (at_work_ && !helper.ok() && helper.code() != SH_ERROR_DEVICE_LOST && !strays_.exchange(true))
        StrayCopies::of_process().begin();
    return once_more([&] { return device_.stream_synchronize(streams.of_device); });
}

Status Relay::check() {
    if (is_distrusted()) return Status(SH_ERROR_BACKEND, "a copy of the helper failed");
    uint32_t done = 0;
    SH_TRY(helper_.event_query(helpers_last(), &done));
    if (done && settled_) at_work_ = false;
    return Status();
}

bool Relay::takes(const void* memory, uint64_t bytes) {
    uint32_t pinned = 0;
    return helper_.host_is_pinned(memory, bytes, &pinned).ok() && pinned;
}

Status Relay::bring(const Command& command, std::span<const sh_backend_event> events, WaitSet* waited) {
    Status status = queue(command, events, waited);
    link_.speed.look();
    across_.speed.look();
    if (status.ok()) return status;
    // What was queued before the failure may still write. It ends here, and the bytes may then come another way.
    if (const Status settled = settle(); !settled.ok()) return settled;
    return status;
}

Status Relay::queue(const Command& command, std::span<const sh_backend_event> events, WaitSet* waited) {
    const Command waits{.waits = command.waits};
    Issued none;
    SH_TRY(issue(device_, across_.stream(), {&waits, 1}, events, waited, &none));
    for (uint64_t done = 0; done < command.bytes;) {
        const uint64_t bytes = std::min(command.bytes - done, slot_bytes_);
        Slot& slot = slots_[next_++ % kSlots];
        SH_TRY(pass(slot, command.device + done, reinterpret_cast<const void*>(command.other + done), bytes));
        done += bytes;
    }
    return Status();
}

// Queues a copy of one half, between what it comes after and what tells that it has ended.
template <class Copy>
Status Relay::copy_half(Half& half, sh_backend_event after, sh_backend_event done, uint64_t bytes, Copy&& copy) {
    if (after) SH_TRY(half.device.stream_wait_event(half.stream(), after));
    const bool timed = half.speed.meter().begin(half.stream(), bytes);
    SH_TRY(copy());
    if (timed) half.speed.meter().end(half.stream());
    half.speed.copied();
    return half.device.event_record(done, half.stream());
}

Status Relay::pass(Slot& slot, uint64_t on_device, const void* on_host, uint64_t bytes) {
    settled_ = false;
    at_work_ = true;
    const auto fill = [&] { return helper_.copy_to_device(link_.stream(), slot.address, on_host, bytes); };
    const auto empty = [&] { return device_.copy_on_device(across_.stream(), on_device, slot.address, bytes); };
    SH_TRY(copy_half(link_, slot.used ? slot.emptied : 0, slot.filled, bytes, fill));
    SH_TRY(copy_half(across_, slot.filled, slot.emptied, bytes, empty));
    slot.used = true;
    last_ = slot.emptied;
    pending_[0] = pending_[1] = true;
    settled_ = true;  // the events tell when the copies have ended
    brought_++;
    return Status();
}

Status Relay::join(Follower follower, sh_stream stream) {
    bool& pending = pending_[static_cast<size_t>(follower)];
    if (!settled_) return settle();
    if (pending) SH_TRY(device_.stream_wait_event(stream, last_));
    pending = false;
    return Status();
}

void Relay::set_speed(double bytes_per_ns, uint64_t lone_copy_ns) {
    const uint64_t least = slot_bytes_ / 2;
    link_.speed.start(bytes_per_ns, lone_copy_ns, least);
    across_.speed.start(0, lone_copy_ns, least);
}

double Relay::speed() const {
    const double link = link_.speed.bytes_per_ns();
    return across_.speed.known() ? std::min(link, across_.speed.bytes_per_ns()) : link;
}

}  // namespace stagehand::transfer
