#include "transfer/bond/relay.h"

#include <algorithm>

#include "base/once_more.h"
#include "transfer/route/issue.h"

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
    SH_TRY(lanes.lend(Direction::to_device, &across_));
    SH_TRY(helper_lanes.lend(Direction::to_device, &down_));
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
    across_ = Lane();
    down_ = Lane();
}

Status Relay::close(bool* out_over) {
    *out_over = true;
    if (!is_open()) return Status();
    SH_TRY(settle());
    *out_over = once_more([&] { return helper_.stream_synchronize(down_.stream()); }).ok();
    forget();
    return Status();
}

// A helper that does not answer any more may still fill slots, but the device copies nothing from them.
Status Relay::settle() {
    (void)once_more([&] { return helper_.stream_synchronize(down_.stream()); }).ok();
    SH_TRY(once_more([&] { return device_.stream_synchronize(across_.stream()); }));
    settled_ = true;
    pending_[0] = pending_[1] = false;
    return Status();
}

bool Relay::takes(const void* memory, uint64_t bytes) {
    uint32_t pinned = 0;
    return helper_.host_is_pinned(memory, bytes, &pinned).ok() && pinned;
}

Status Relay::bring(const Command& command, std::span<const sh_backend_event> events, WaitSet* waited) {
    Status status = queue(command, events, waited);
    down_speed_.look();
    across_speed_.look();
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

Status Relay::pass(Slot& slot, uint64_t to, const void* from, uint64_t bytes) {
    settled_ = false;
    SH_TRY(helper_.stream_wait_event(down_.stream(), slot.emptied));
    const bool down_timed = down_speed_.meter().begin(down_.stream(), bytes);
    SH_TRY(helper_.copy_to_device(down_.stream(), slot.address, from, bytes));
    if (down_timed) down_speed_.meter().end(down_.stream());
    SH_TRY(helper_.event_record(slot.filled, down_.stream()));
    SH_TRY(device_.stream_wait_event(across_.stream(), slot.filled));
    const bool across_timed = across_speed_.meter().begin(across_.stream(), bytes);
    SH_TRY(device_.copy_on_device(across_.stream(), to, slot.address, bytes));
    if (across_timed) across_speed_.meter().end(across_.stream());
    SH_TRY(device_.event_record(slot.emptied, across_.stream()));
    last_ = slot.emptied;
    pending_[0] = pending_[1] = true;
    settled_ = true;  // the events tell when the copies have ended
    down_speed_.copied();
    across_speed_.copied();
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
    down_speed_.start(bytes_per_ns, lone_copy_ns, least);
    across_speed_.start(0, lone_copy_ns, least);
}

double Relay::speed() const {
    const double down = down_speed_.bytes_per_ns();
    return across_speed_.known() ? std::min(down, across_speed_.bytes_per_ns()) : down;
}

}  // namespace stagehand::transfer
