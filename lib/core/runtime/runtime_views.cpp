// Acquire and release.
#include <algorithm>

#include "base/scratch.h"
#include "core/runtime/runtime.h"
#include "telemetry/trace.h"

namespace stagehand::core {

Status Runtime::unknown_block(sh_block id) const {
    SH_TRY(usable());
    return Status(SH_ERROR_INVALID_HANDLE, "block " + std::to_string(id) + " is not a block of " + tenant_name());
}

Status Runtime::held_by(const Unit& wanted, Unit& holder) {
    std::string who = registry_.name_of(holder);
    for (const Block& block : registry_.blocks_of(holder))
        if (block.held) who = registry_.name_of(block);
    return Status(SH_ERROR_HELD, registry_.name_of(wanted) + " needs memory that a view of " + who + " holds; release it first, or create " +
                                     tenant_name() + " with a larger max_held");
}

void Runtime::hold(Block& block, Unit& unit) {
    block.held++;
    if (unit.held++ == 0 && unit.memory == Memory::unordered) unordered_.hold(unit);
    views_++;
    if (telemetry::trace_on()) [[unlikely]] block.detail->held_since_ns = device_->backend().now_ns();
}

void Runtime::unhold(Block& block, Unit& unit) {
    if (telemetry::trace_on() && block.held == 1 && block.detail->held_since_ns) [[unlikely]]
        telemetry::trace_view(name_.c_str(), registry_.name_of(block).c_str(), block.detail->held_since_ns, device_->backend().now_ns());
    block.held--;
    views_--;
    unit.last_use = ++releases_;
    if (--unit.held) return;
    if (unit.memory == Memory::unordered) unordered_.unhold(unit);
    if (unit.stale && !(unit.load && unit.load->queued) && !write_back_.is_dirty(unit)) drop_contents(unit);
}

// Forgets that the unit's bytes are on the device; its pages and their fences stay.
void Runtime::drop_contents(Unit& unit) {
    const uint32_t self = index_of(unit);
    for (uint32_t k = 0; k < unit.ring_pages; k++) {
        Ring::Page& at = ring_.page_of(unit, k);
        if (at.contents == self) at.contents = kNone;
    }
    unit.ring_present = unit.own_valid = 0;
    unit.ready = unit.stale = unit.dirty = false;
    for (Block& block : registry_.blocks_of(unit)) block.dirty_own = block.dirty_ring = false;
}

// The engine has come to this unit: follow it in the order, and learn.
void Runtime::arrive(Unit& unit) {
    const uint32_t index = index_of(unit);
    if (order_.recording()) order_.record(index);
    const uint64_t before = order_.cursor();
    if (order_.arrive(index) && order_.cursor() > before + 1) prefetcher_.restart();
}

// The pages that the unit's missing bytes go to must be nobody's who still needs them. The mutex may be given up, so look again
// after each wait.
Status Runtime::clear_way(Unit& unit, Lock& lock) {
    const uint32_t self = index_of(unit);
    for (uint32_t k = 0; k < unit.ring_pages || unit.writing_back; k++) {
        if (unit.writing_back) {
            changed_.wait(lock, [&] { return !unit.writing_back; });
            SH_TRY(usable());
            k = UINT32_MAX;   // from the start
            continue;
        }
        const uint32_t contents = ring_.page_of(unit, k).contents;
        if (contents == kNone || contents == self) continue;
        Unit& there = registry_.unit(contents);
        if (there.held) return held_by(unit, there);
        const bool waits = there.writing_back || there.dirty || (there.load && there.load->queued);
        if (!waits) continue;
        loader_.cancel(there, lock);
        if (there.dirty) SH_TRY(write_back_.begin(there, WriteBack::Part::ring));
        if (there.writing_back) changed_.wait(lock, [&] { return !there.writing_back; });
        SH_TRY(usable());
        k = UINT32_MAX;   // from the start
    }
    prefetcher_.restart();
    return Status();
}

Status Runtime::place_unordered(Unit& unit, Lock& lock) {
    SH_TRY(unordered_.place(unit, lock));
    if (unit.protections) tell_kept();   // it has something that stays, from here on
    return Status();
}

Status Runtime::bring_memory(Unit& unit, uint32_t* view_flags, Lock& lock) {
    if (unit.memory != Memory::none) return Status();
    if (!planned_ || (replan_wanted_ && !in_step_ && views_ == 0 && !plan_is_held())) {
        trimmed_to_ = UINT64_MAX;
        SH_TRY(replan(lock, true, true));
    }
    if (unit.memory != Memory::none) return Status();
    SH_TRY(place_unordered(unit, lock));
    *view_flags |= SH_VIEW_REMAPPED;
    return Status();
}

void Runtime::set_bringing(Unit& unit, bool bringing) {
    unit.bringing = bringing;
    bringings_ += bringing ? 1 : -1;
    if (!bringing) changed_.notify_all();
}

// Sees to it that all of the unit's bytes are there or on their way. The unit is not counted as held yet by the caller.
Status Runtime::begin_bringing(Unit& unit, uint32_t* view_flags, Lock& lock) {
    for (;;) {   // where the mutex was given up, look again
        changed_.wait(lock, [&] { return (!unit.bringing && !changing_) || closing_; });
        SH_TRY(usable());
        if (!unit.live) return Status(SH_ERROR_INVALID_HANDLE, "the block was unregistered meanwhile");
        if (unit.updating) return Status(SH_ERROR_BUSY, registry_.name_of(unit) + ": its source is being updated");
        if (entered_ && unit.ring_pages)
            return Status(SH_ERROR_BUSY, registry_.name_of(unit) + " streams, and a graph of " + tenant_name() + " has been entered and not left");
        if (unit.load && !unit.load->queued && !unit.load->issued) {
            // A prefetch has failed since: its failure belongs to whoever needs the bytes, unless it was only given up.
            Status failure = loader_.wait_issued(unit, lock, 0);
            if (failure.code() != SH_ERROR_CANCELLED) return failure;
        } else if (unit.stale && !unit.held && unit.load && unit.load->queued) {
            loader_.cancel(unit, lock);
        } else if (unit.stale && !unit.held && (unit.writing_back || write_back_.is_dirty(unit))) {
            SH_TRY(write_back_.flush(unit, lock));
        } else {
            break;
        }
    }
    if (unit.stale && !unit.held) drop_contents(unit);
    if (unit.memory != Memory::none && unit.complete() && !unit.stale) {
        *view_flags |= SH_VIEW_HIT;
        return Status();
    }
    if (unit.held)
        return Status(SH_ERROR_HELD, registry_.name_of(unit) + " is to be loaded anew, which a view of it, or of a block that shares its pages, "
                                                               "keeps from being done: release that first");
    set_bringing(unit, true);
    Status status = bring_memory(unit, view_flags, lock);
    const bool pinned = status.ok() && unit.memory == Memory::unordered;
    if (pinned) unordered_.pin(unit);
    if (status.ok()) status = clear_way(unit, lock);
    if (status.ok() && unit.updating) status = Status(SH_ERROR_BUSY, registry_.name_of(unit) + ": its source is being updated");
    if (status.ok() && !unit.complete()) status = loader_.begin(unit, 0);
    if (pinned) unordered_.unpin(unit);
    set_bringing(unit, false);
    return status;
}

void Runtime::note_wait(const Unit& unit, uint64_t began_ns, uint32_t* view_flags) {
    const uint64_t ended_ns = device_->backend().now_ns();
    stats_.host_waits++;
    stats_.stall_ns += ended_ns - began_ns;
    if (telemetry::trace_on()) telemetry::trace_wait(name_.c_str(), registry_.name_of(unit).c_str(), began_ns, ended_ns);
    *view_flags |= SH_VIEW_WAITED;
}

// Orders the stream after what still reads and writes the unit, or waits where that cannot be.
Status Runtime::finish_bringing(Unit& unit, sh_stream stream, uint32_t flags, uint32_t* view_flags, Lock& lock) {
    if (unit.arrives)
        if (Status status = follow_launch(unit, stream, flags, view_flags, lock); status.code() != SH_OK) return status;
    if (unit.being_read) {
        bool waited = false;
        const uint64_t began = device_->backend().now_ns();
        Status status = write_back_.order_after(unit, stream, !(flags & SH_ACQUIRE_NO_WAIT), lock, &waited);
        if (waited) note_wait(unit, began, view_flags);
        if (status.code() != SH_OK) return status;
        if (closing_) return usable();
    }
    const bool queued = unit.load && unit.load->queued;
    if (unit.load && !queued && !unit.load->issued) return loader_.wait_issued(unit, lock, 0);   // it has failed since it was begun
    Status failure;
    if (!queued && loader_.settle(unit, &failure)) {
        SH_TRY(failure);
        if (!unit.complete()) return loader_.last_failure().within(registry_.name_of(unit));
        unit.ready = unit.current();
        return Status();
    }
    if ((queued || stream == SH_STREAM_HOST) && (flags & SH_ACQUIRE_NO_WAIT)) return Status(SH_NOT_READY);
    if (queued || stream == SH_STREAM_HOST) {
        const uint64_t began = device_->backend().now_ns();
        Status status = loader_.wait_issued(unit, lock, 0);
        if (status.ok() && stream == SH_STREAM_HOST) status = loader_.wait_done(unit, lock);
        note_wait(unit, began, view_flags);
        SH_TRY(status);
        if (closing_) return usable();
        if (!unit.complete()) return loader_.last_failure().within(registry_.name_of(unit));   // met by another caller that waited for it too
    }
    if (stream == SH_STREAM_HOST || !unit.load) return Status();
    SH_TRY(device_->backend().stream_wait_event(stream, unit.load->done));
    return Status();
}

// The same, and notes whether all was there when it was asked for. `waited`: the call has waited for other bytes, while which these may have come.
Status Runtime::finish_and_note(Unit& unit, sh_stream stream, uint32_t flags, uint32_t* view_flags, bool* waited, Lock& lock) {
    const bool may_have_come = *waited && (unit.load || unit.arrives);
    Status status = finish_bringing(unit, stream, flags, view_flags, lock);
    *waited = *waited || *view_flags & SH_VIEW_WAITED;
    const bool hit = (*view_flags & (SH_VIEW_HIT | SH_VIEW_WAITED)) == SH_VIEW_HIT;
    if (hit && !may_have_come && !unit.load && !unit.arrives) *view_flags |= kInTime;
    return status;
}

void Runtime::count_acquire(uint32_t view_flags) {
    stats_.acquires++;
    (view_flags & SH_VIEW_HIT ? stats_.hits : stats_.misses)++;
    if (view_flags & kInTime) stats_.in_time++;
}

Status Runtime::acquire(sh_block id, sh_stream stream, uint32_t flags, sh_view* out, Lock& lock) {
    SH_TRY(usable());
    SH_TRY(write_back_.take_failure());
    if (capture_) return capture_acquire(id, stream, out);
    SH_TRY(check_no_capture(stream));
    Block* const found = registry_.find(id);
    if (!found) return unknown_block(id);
    Block& block = *found;
    Unit& unit = registry_.unit(block.unit);
    uint32_t view_flags = 0;
    waiters_++;
    Status status;
    bool arrived = false, waited = false;
    do {   // again when another call has given up the load
        view_flags = 0;
        status = begin_bringing(unit, &view_flags, lock);
        if (status.ok() && block.id != id) status = unknown_block(id);
        if (!status.ok()) break;
        // Held from here on, so that nobody takes the pages while the mutex is given up.
        hold(block, unit);
        const bool asked_before = std::exchange(unit.announced, false);   // and was told that it is not ready
        if (asked_before) view_flags &= ~uint32_t(SH_VIEW_HIT);
        if (!std::exchange(arrived, true) && !asked_before) arrive(unit);
        status = finish_and_note(unit, stream, flags, &view_flags, &waited, lock);
        unit.announced = status.code() == SH_NOT_READY;
        if (status.code() != SH_OK) unhold(block, unit);
    } while (status.code() == SH_ERROR_CANCELLED && !closing_);
    waiters_--;
    if (closing_) changed_.notify_all();
    if (status.code() != SH_OK) return note(status);
    count_acquire(view_flags);
    if (unit.memory == Memory::unordered) unordered_.touch(unit);
    if (meter_.measuring() && unit.held == 1) meter_.begin(index_of(unit), stream);
    fill_view(block, unit, view_flags, out);
    return Status();
}

Status Runtime::acquire_many(std::span<const sh_block> ids, sh_stream stream, uint32_t flags, std::span<sh_view* const> out, Lock& lock) {
    SH_TRY(usable());
    SH_TRY(write_back_.take_failure());
    for (const sh_block id : ids)
        if (!registry_.find(id)) return unknown_block(id);
    if (capture_) {
        for (size_t i = 0; i < ids.size(); i++) {
            Status status = capture_acquire(ids[i], stream, out[i]);
            if (status.ok()) continue;
            while (i-- > 0) (void)capture_release(*registry_.find(ids[i]), stream).ok();
            return status;
        }
        return Status();
    }
    SH_TRY(check_no_capture(stream));
    Scratch<uint32_t> scratch;
    std::vector<uint32_t>& view_flags = *scratch;
    view_flags.assign(ids.size(), 0);
    size_t held = 0;
    Status status;
    waiters_++;
    // All are begun and held first: holding keeps them from pushing each other out.
    for (; held < ids.size() && status.code() == SH_OK; held++) {
        Block* block = registry_.find(ids[held]);
        if (!block) {
            status = unknown_block(ids[held]);
            break;
        }
        Unit& unit = registry_.unit(block->unit);
        status = begin_bringing(unit, &view_flags[held], lock);
        if (status.ok() && block->id != ids[held]) status = unknown_block(ids[held]);
        if (status.code() != SH_OK) break;
        hold(*block, unit);
        if (std::exchange(unit.announced, false)) view_flags[held] &= ~uint32_t(SH_VIEW_HIT);
        else arrive(unit);
    }
    bool waited = false;
    for (size_t i = 0; i < held && status.code() == SH_OK; i++)
        status = finish_and_note(registry_.unit(registry_.find(ids[i])->unit), stream, flags, &view_flags[i], &waited, lock);
    if (status.code() == SH_NOT_READY)
        for (size_t i = 0; i < held; i++) registry_.unit(registry_.find(ids[i])->unit).announced = true;
    waiters_--;
    if (closing_) changed_.notify_all();
    if (status.code() == SH_ERROR_CANCELLED && !closing_)   // by an update of a source: begin_bringing() would say so now
        status = Status(SH_ERROR_BUSY, "the load of a block was given up for an update of its source");
    for (size_t i = 0; i < held; i++) {
        Block& block = *registry_.find(ids[i]);
        Unit& unit = registry_.unit(block.unit);
        if (status.code() != SH_OK) {
            unhold(block, unit);
            continue;
        }
        count_acquire(view_flags[i]);
        if (unit.memory == Memory::unordered) unordered_.touch(unit);
        if (meter_.measuring() && unit.held == 1) meter_.begin(index_of(unit), stream);
        fill_view(block, unit, view_flags[i], out[i]);
    }
    return note(status);
}

Status Runtime::check_no_capture(sh_stream stream) {
    const Status status = stream == SH_STREAM_HOST ? Status() : streams_.check_no_capture(stream);
    return status.ok() ? status : status.within(tenant_name());
}

// Notes that the stream may still use the unit's memory after this.
Status Runtime::note_use(Unit& unit, sh_stream stream) {
    uint32_t number = 0;
    const bool at_once = !in_step_ || thread_stream::is_name(stream);
    if (unit.ring_pages || at_once) SH_TRY(streams_.check_no_capture(stream));
    SH_TRY(streams_.number(stream, &number));
    streams_.mark(number);
    unit.used_streams |= uint64_t(1) << number;
    if (at_once) SH_TRY(streams_.record(number));
    if (!unit.ring_pages) return Status();
    auto use = std::find_if(unit.uses.begin(), unit.uses.end(), [&](const UnitUse& u) { return u.stream == stream; });
    if (use == unit.uses.end()) {   // in place of a forgotten one
        use = std::find_if(unit.uses.begin(), unit.uses.end(), [](const UnitUse& u) { return u.stream == SH_STREAM_HOST; });
        for (auto done = unit.uses.begin(); use == unit.uses.end() && done != unit.uses.end(); ++done) {   // or of one that is over
            uint32_t over = 0;
            if (device_->backend().event_query(done->event, &over).ok() && over) use = done;
        }
        if (use != unit.uses.end()) use->stream = stream;
    }
    if (use == unit.uses.end()) {
        sh_backend_event event = 0;
        SH_TRY(events_.take(&event));
        use = unit.uses.insert(unit.uses.end(), {stream, event});
    }
    return device_->backend().event_record(use->event, stream);
}

Status Runtime::end_view(Block& block, sh_stream stream) {
    Unit& unit = registry_.unit(block.unit);
    Status status;
    if (stream != SH_STREAM_HOST) {
        status = note_use(unit, stream);
        if (status.code() == SH_ERROR_INVALID_STATE) return status.within(registry_.name_of(block) + " stays held");
        if (!status.ok()) {
            // Without an event nobody could wait for this use later, so it is waited for now.
            Status waited = device_->backend().stream_synchronize(stream);
            if (waited.code() == SH_ERROR_INVALID_HANDLE && status.code() == SH_ERROR_INVALID_HANDLE)
                return Status(SH_ERROR_INVALID_HANDLE, registry_.name_of(block) + " stays held: the device does not know the stream that it is released on");
            if (!waited.ok())
                status = Status(SH_ERROR_RUNTIME_LOST, std::string(status.text()) + "; waiting for the stream instead: " + waited.text());
        }
    }
    if (meter_.measuring() && unit.held == 1) meter_.end(index_of(unit), stream);
    unhold(block, unit);
    if (unit.held == 0 && unit.dirty && status.ok()) status = write_back_.begin(unit, WriteBack::Part::ring);
    return status;
}

Status Runtime::release(sh_block id, sh_stream stream, Lock& lock) {
    Block* const block = registry_.find(id);
    if (!block) return unknown_block(id);
    if (block->held == 0) return Status(SH_ERROR_INVALID_STATE, registry_.name_of(*block) + " is not held");
    if (closing_) return usable();
    if (capture_) return capture_release(*block, stream);
    Status status = end_view(*block, stream);
    if (telemetry::trace_on()) [[unlikely]] loader_.settle_all();
    if (eventful_ && may_prefetch() && status.ok() && (in_step_ || order_.known())) prefetcher_.pump(device_->backend().now_ns(), stream == SH_STREAM_HOST);
    if (status.ok()) status = write_back_.take_failure();
    return status.ok() ? leave_if_due(lock) : note(status);
}

Status Runtime::prefetch(std::span<const sh_block> ids, Lock& lock) {
    SH_TRY(usable());
    for (const sh_block id : ids)
        if (!registry_.find(id)) return unknown_block(id);
    if (capture_ || entered_) return Status();   // a hint
    waiters_++;
    for (const sh_block id : ids) {
        Block* const block = registry_.find(id);
        if (!block || closing_ || changing_) break;
        Unit& unit = registry_.unit(block->unit);
        if (unit.held || unit.bringing || unit.updating || unit.load || unit.writing_back || order_.contains(block->unit)) continue;
        if (unit.stale && write_back_.is_dirty(unit)) continue;
        if (unit.stale) drop_contents(unit);
        if (unit.memory == Memory::none) {
            set_bringing(unit, true);
            const bool placed = planned_ && place_unordered(unit, lock).ok();
            set_bringing(unit, false);
            if (!placed) break;   // a hint: the acquire will say what is wrong
            if (unit.updating) continue;   // begun while the mutex was given up
        }
        if (!unit.complete() && !loader_.begin(unit, device_->backend().now_ns()).ok()) break;
    }
    waiters_--;
    if (closing_) changed_.notify_all();
    return Status();
}

Status Runtime::read(sh_block id, sh_stream stream, uint64_t offset, void* buffer, uint64_t bytes, Lock& lock) {
    SH_TRY(usable());
    SH_TRY(only_outside_capture());
    Block* const block = registry_.find(id);
    if (!block) return unknown_block(id);
    if (!block->held) return Status(SH_ERROR_INVALID_STATE, registry_.name_of(*block) + " is not held");
    if (offset > block->bytes || bytes > block->bytes - offset)
        return Status(SH_ERROR_INVALID_ARGUMENT, "offset " + std::to_string(offset) + " and bytes " + std::to_string(bytes) + " pass the end of " +
                                                     registry_.name_of(*block) + ", " + std::to_string(block->bytes) + " bytes");
    BackendDevice& backend = device_->backend();
    const uint64_t address = block->address + offset;
    const sh_stream copies = write_back_.stream();
    if (stream != SH_STREAM_HOST) {
        SH_TRY(check_no_capture(stream));
        sh_backend_event event = 0;
        SH_TRY(events_.take(&event));
        Status status = backend.event_record(event, stream);
        if (status.ok()) status = backend.stream_wait_event(copies, event);
        events_.give(&event);
        SH_TRY(status);
    }
    const Unit& unit = registry_.unit(block->unit);
    if (unit.load && unit.load->issued) SH_TRY(backend.stream_wait_event(copies, unit.load->done));   // `stream` may not be the acquire's
    waiters_++;
    lock.unlock();
    Status status = backend.copy_to_host(copies, buffer, address, bytes);
    if (status.ok()) status = backend.stream_synchronize(copies);
    lock.lock();
    waiters_--;
    if (closing_) changed_.notify_all();
    return note(status);
}

}  // namespace stagehand::core
