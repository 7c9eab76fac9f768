#include "transfer/bond/relay.h"

#include <algorithm>
#include <string>

#include "backend/stray_copies.h"
#include "base/once_more.h"
#include "transfer/route/issue.h"

namespace stagehand::transfer {
namespace {

constexpr uint64_t kRelayAlignment = 256;

}  // namespace

Relay::~Relay() {
    bool over = false;
    (void)close(&over).ok();
    give_up();
}

Status Relay::open(Lanes& lanes, Lanes& helper_lanes, uint64_t address, uint64_t bytes) {
    const Status status = make(lanes, helper_lanes, address, bytes);
    if (!status.ok()) forget();
    return status;
}

Status Relay::open_to_record(Lanes& lanes, Lanes& helper_lanes, uint64_t address, uint64_t bytes,
                             sh_backend_event fork) {
    SH_TRY(open(lanes, helper_lanes, address, bytes));
    records_ = true;
    fork_ = fork;
    return Status();
}

// Only streams that record anything join, because a stream that has joined must come back.
Status Relay::join_capture() {
    if (!fork_) return Status();
    SH_TRY(helper_.stream_wait_event(link_.stream(), fork_));
    const sh_backend_event fork = fork_;
    fork_ = 0;  // one has joined: end_record() takes the other along
    return device_.stream_wait_event(across_.stream(), fork);
}

Status Relay::end_record(sh_stream stream) {
    if (fork_) return Status();
    const Slot& slot = slots_[0];
    SH_TRY(first_half().device.event_record(slot.filled, first_half().stream()));
    SH_TRY(last_half().device.stream_wait_event(last_half().stream(), slot.filled));
    SH_TRY(last_half().device.event_record(slot.emptied, last_half().stream()));
    return device_.stream_wait_event(stream, slot.emptied);
}

Status Relay::follow(sh_backend_event event) {
    if (!fork_) return device_.stream_wait_event(across_.stream(), event);
    fork_ = event;
    return Status();
}

// A copy of the launch is a copy of the helper, whose end the same event tells from now on.
Status Relay::follow_launch(sh_backend_event event) {
    SH_TRY(follow(event));
    SH_TRY(copy_after(event));
    return helper_.event_record(helpers_last(), link_.stream());
}

Status Relay::make(Lanes& lanes, Lanes& helper_lanes, uint64_t address, uint64_t bytes) {
    slot_bytes_ = bytes / kSlots / kRelayAlignment * kRelayAlignment;
    if (!slot_bytes_) return Status(SH_ERROR_INTERNAL, "the buffer of a relay is too small");
    next_ = 0;
    last_ = 0;
    pending_[0] = pending_[1] = false;
    settled_ = true;
    launched_ = false;
    helper_failed_ = at_work_ = copies_ = false;
    {
        std::lock_guard lock(doubt_mutex_);
        closed_ = false;
    }
    SH_TRY(lanes.lend(direction_, &across_.lane));
    SH_TRY(helper_lanes.lend(direction_, &link_.lane));
    for (uint32_t i = 0; i < kSlots; i++) {
        slots_[i].address = address + i * slot_bytes_;
        SH_TRY(first_half().device.event_create(false, &slots_[i].filled));
        SH_TRY(last_half().device.event_create(false, &slots_[i].emptied));
    }
    return Status();
}

void Relay::forget() {
    give_up();
    for (Slot& slot : slots_) {
        const auto destroy = [](Half& of, sh_backend_event event) {
            if (event) (void)once_more([&] { return of.device.event_destroy(event); }).ok();
        };
        destroy(first_half(), slot.filled);
        destroy(last_half(), slot.emptied);
        slot = {};
    }
    across_.lane = Lane();
    link_.lane = Lane();
    records_ = false;
    fork_ = 0;
}

Status Relay::close(bool* out_over) {
    *out_over = true;
    if (records_) forget();
    if (!is_open()) return Status();
    *out_over = false;
    SH_TRY(settle());
    SH_TRY(end_doubt());
    const Status ended = once_more([&] { return helper_.stream_synchronize(link_.stream()); });
    *out_over = ended.ok();
    if (ended.ok() || ended.code() == SH_ERROR_DEVICE_LOST) clear(&reads_host_);
    forget();
    return Status();
}

Status Relay::settle() {
    SH_TRY(wait_for(streams()));
    settled_ = true;
    pending_[0] = pending_[1] = false;
    return Status();
}

// On the way to the device, a helper that does not answer any more may still fill slots from host memory, but the
// device copies nothing from them. On the way to the host it may still write host memory. Both are over if it is lost.
Status Relay::wait_for(Streams streams) {
    Status helper = helper_.stream_synchronize(streams.of_helper);
    if (!helper.ok()) {  // the error may be that of a copy, and a second call hides it
        helper_failed_ = true;
        helper = helper_.stream_synchronize(streams.of_helper);
    }
    // Launches have ended with their graph, which waits for its helpers. Only end() ends a doubt: it has come from
    // copies that this call may not have waited for.
    if (copies_ && !helper.ok() && helper.code() != SH_ERROR_DEVICE_LOST)
        raise(to_device() ? &reads_host_ : &host_doubtful_);
    return once_more([&] { return device_.stream_synchronize(streams.of_device); });
}

void Relay::raise(std::atomic<bool>* doubt) {
    std::lock_guard lock(doubt_mutex_);
    if (!closed_ && !doubt->exchange(true)) stray_ = StrayCopies::of_process().begin();
}

void Relay::clear(std::atomic<bool>* doubt) {
    std::lock_guard lock(doubt_mutex_);
    if (doubt->exchange(false)) StrayCopies::of_process().end();
}

// Nobody asks any more. The memory that the copies may use stays.
void Relay::give_up() {
    std::lock_guard lock(doubt_mutex_);
    closed_ = true;
    for (std::atomic<bool>* const doubt : {&reads_host_, &host_doubtful_})
        if (doubt->exchange(false)) StrayCopies::of_process().give_up(stray_);
}

Status Relay::end_doubt() { return end(&host_doubtful_, "writes"); }

Status Relay::end_reads() { return end(&reads_host_, "reads"); }

Status Relay::end(std::atomic<bool>* doubt, const char* does) {
    if (!*doubt) return Status();
    const Status ended = once_more([&] { return helper_.stream_synchronize(link_.stream()); });
    if (!ended.ok() && ended.code() != SH_ERROR_DEVICE_LOST)
        return ended.within(std::string("it is not known whether a helper still ") + does + " host memory");
    clear(doubt);
    return Status();
}

Status Relay::check() {
    if (is_distrusted()) return Status(SH_ERROR_BACKEND, "a copy of the helper failed");
    uint32_t done = 0;
    SH_TRY(helper_.event_query(helpers_last(), &done));
    if (done && settled_) {
        copies_ = false;
        if (!launched_) at_work_ = false;
    }
    return Status();
}

bool Relay::takes(const void* memory, uint64_t bytes) {
    uint32_t pinned = 0;
    return helper_.host_is_pinned(memory, bytes, &pinned).ok() && pinned;
}

Status Relay::bring(const Command& command, std::span<const sh_backend_event> events, WaitSet* waited) {
    Status status = queue(command, events, waited);
    if (records_) {
        settled_ = status.ok();
        return status;
    }
    link_.speed.look();
    across_.speed.look();
    if (status.ok()) return status;
    // What was queued before the failure may still write. It ends here, and the bytes may then come another way.
    if (const Status settled = settle(); !settled.ok()) return settled;
    return status;
}

Status Relay::queue(const Command& command, std::span<const sh_backend_event> events, WaitSet* waited) {
    SH_TRY(join_capture());
    const Command waits{.waits = command.waits};
    Issued none;
    SH_TRY(issue(device_, across_.stream(), {&waits, 1}, events, waited, &none));
    for (uint64_t done = 0; done < command.bytes;) {
        const uint64_t bytes = std::min(command.bytes - done, slot_bytes_);
        Slot& slot = slots_[next_++ % kSlots];
        SH_TRY(pass(slot, command.device + done, reinterpret_cast<void*>(command.other + done), bytes));
        done += bytes;
    }
    return Status();
}

// Queues a copy of one half, between what it comes after and what tells that it has ended.
template <class Copy>
Status Relay::copy_half(Half& half, sh_backend_event after, sh_backend_event done, uint64_t bytes, Copy&& copy) {
    if (after) SH_TRY(half.device.stream_wait_event(half.stream(), after));
    const bool timed = !records_ && half.speed.meter().begin(half.stream(), bytes);
    SH_TRY(copy());
    if (timed) half.speed.meter().end(half.stream());
    half.speed.copied();
    return half.device.event_record(done, half.stream());
}

Status Relay::pass(Slot& slot, uint64_t on_device, void* on_host, uint64_t bytes) {
    settled_ = false;
    at_work_ = copies_ = true;
    const auto fill = [&] {
        return to_device() ? helper_.copy_to_device(link_.stream(), slot.address, on_host, bytes)
                           : device_.copy_on_device(across_.stream(), slot.address, on_device, bytes);
    };
    const auto empty = [&] {
        return to_device() ? device_.copy_on_device(across_.stream(), on_device, slot.address, bytes)
                           : helper_.copy_to_host(link_.stream(), on_host, slot.address, bytes);
    };
    SH_TRY(copy_half(first_half(), slot.used ? slot.emptied : 0, slot.filled, bytes, fill));
    SH_TRY(copy_half(last_half(), slot.filled, slot.emptied, bytes, empty));
    slot.used = true;
    last_ = slot.emptied;
    pending_[0] = pending_[1] = true;
    settled_ = true;  // the events tell when the copies have ended
    brought_++;
    return Status();
}

Status Relay::join(Follower follower, sh_stream stream) {
    bool& pending = pending_[static_cast<size_t>(follower)];
    if (!settled_) return records_ ? end_record(stream) : settle();
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
