// Acquire and release.
#include <algorithm>

#include "base/no_throw.h"
#include "base/scratch.h"
#include "base/unlocked.h"
#include "core/runtime/runtime.h"
#include "telemetry/trace.h"

namespace stagehand::core {
namespace {

// Another caller may have changed the plan, in vain, in place of this one.
constexpr int kPlanAttempts = 2;

}  // namespace

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
    gate_.view_taken();
    if (telemetry::trace_on()) [[unlikely]] block.detail->held_since_ns = device_->backend().now_ns();
}

void Runtime::unhold(Block& block, Unit& unit) {
    if (telemetry::trace_on() && block.held == 1 && block.detail->held_since_ns) [[unlikely]]
        telemetry::trace_view(gate_.name().c_str(), registry_.name_of(block).c_str(), block.detail->held_since_ns, device_->backend().now_ns());
    block.held--;
    gate_.view_ended();
    contents_.note_release(unit, 0);
    if (--unit.held) return;
    if (unit.memory == Memory::unordered) unordered_.unhold(unit);
    drop_if_stale(unit);
}

// What is out of date goes, unless somebody still holds, reads, brings or writes it. False: it stays for now.
bool Runtime::drop_if_stale(Unit& unit) {
    if (!unit.stale()) return true;
    if (unit.held || unit.load_queued() || changes_.is_changed(unit)) return false;
    contents_.drop(unit);
    return true;
}

// The engine has come to this unit: follow it in the order, and learn.
void Runtime::arrive(Unit& unit) {
    const uint32_t index = index_of(unit);
    if (order_.recording()) order_.record(index);
    const uint64_t before = order_.cursor();
    if (order_.arrive(index) && order_.cursor() > before + 1) prefetcher_.restart();
}

// Sees to it that the obstacle is none any more, or says why it stays one. The mutex may be given up: the caller asks anew what is in the way.
Status Runtime::remove(const Obstacle& obstacle, const Unit* wanted, Lock& lock) {
    Unit& there = registry_.unit(obstacle.unit);
    switch (obstacle.kind) {
    case Obstacle::none: return Status();
    case Obstacle::updating: return Status(SH_ERROR_BUSY, registry_.name_of(there) + ": its source is being updated");
    case Obstacle::held:
        if (wanted) return held_by(*wanted, there);
        return Status(SH_ERROR_HELD, tenant_name() + ": the graph needs memory that a view of " + registry_.name_of(there) + " holds; release it first");
    case Obstacle::loading: loader_.cancel(there, lock); break;
    case Obstacle::dirty: SH_TRY(write_back_.begin(there, WriteBack::Part::ring)); break;
    case Obstacle::writing: SH_TRY(write_back_.wait(there, lock)); break;
    }
    return usable();
}

Status Runtime::place_unordered(Unit& unit, Lock& lock) {
    SH_TRY(unordered_.place(unit, lock));
    if (unit.protections) tell_kept();   // it has something that stays, from here on
    return Status();
}

Status Runtime::bring_memory(Unit& unit, uint32_t* view_flags, Lock& lock) {
    SH_TRY(place_unordered(unit, lock));
    *view_flags |= SH_VIEW_REMAPPED;
    return Status();
}

// One thing that keeps the unit from being looked at as it is: its failed or outdated load, contents that are out of date. `out_waited`: there
// was one, and the mutex may have been given up.
Status Runtime::make_current(Unit& unit, bool* out_waited, Lock& lock) {
    *out_waited = true;
    if (unit.load() && !unit.load_queued() && !unit.load()->issued) {
        // A prefetch has failed since: its failure belongs to whoever needs the bytes, unless it was only given up.
        Status failure = loader_.wait_issued(unit, lock, 0);
        return failure.code() == SH_ERROR_CANCELLED ? Status() : failure;
    }
    if (!drop_if_stale(unit) && !unit.held) {
        if (unit.load_queued()) loader_.cancel(unit, lock);
        else SH_TRY(write_back_.flush(unit, lock));
        return Status();
    }
    *out_waited = false;
    return Status();
}

// Sees to it that all of the unit's bytes are there or on their way. The unit is not counted as held yet by the caller. Everything is asked
// anew wherever the mutex was given up.
Status Runtime::begin_bringing(Unit& unit, uint32_t* view_flags, Lock& lock) {
    std::optional<Gate::Bringing> bringing;
    std::optional<UnorderedCache::Pin> pin;
    int plans = 0;
    for (;;) {
        SH_TRY(usable());
        if (!bringing && (gate_.changing() || unit.bringing)) {   // a change of the plan waits for those who have begun
            gate_.wait(lock, [&] { return (!unit.bringing && !gate_.changing()) || gate_.closing(); });
            continue;
        }
        if (!unit.live) return Status(SH_ERROR_INVALID_HANDLE, "the block was unregistered meanwhile");
        if (unit.updating()) return Status(SH_ERROR_BUSY, registry_.name_of(unit) + ": its source is being updated");
        if (entered_ && unit.ring_pages)
            return Status(SH_ERROR_BUSY, registry_.name_of(unit) + " streams, and a graph of " + tenant_name() + " has been entered and not left");
        bool waited = false;
        SH_TRY(make_current(unit, &waited, lock));
        if (waited) continue;
        if (unit.memory != Memory::none && unit.complete() && !unit.stale()) {
            if (!bringing) *view_flags |= SH_VIEW_HIT;
            return Status();
        }
        if (unit.held)
            return Status(SH_ERROR_HELD, registry_.name_of(unit) + " is to be loaded anew, which a view of it, or of a block that shares its pages, "
                                                                   "keeps from being done: release that first");
        const bool wants_plan = !planned_ || (replan_wanted_ && !gate_.in_step() && gate_.views() == 0 && !plan_is_held());
        if (unit.memory == Memory::none && wants_plan && plans < kPlanAttempts) {
            plans++;
            trimmed_to_ = UINT64_MAX;
            bringing.reset();   // the change would wait for it
            SH_TRY(replan(lock, true));
            continue;
        }
        if (!bringing) bringing.emplace(gate_, unit);
        if (unit.memory == Memory::none) {
            SH_TRY(bring_memory(unit, view_flags, lock));
            continue;
        }
        if (unit.memory == Memory::unordered && !pin) pin.emplace(unordered_, unit);
        if (const Obstacle obstacle = contents_.in_the_way(unit); obstacle.kind != Obstacle::none) {
            SH_TRY(remove(obstacle, &unit, lock));
            continue;
        }
        prefetcher_.restart();
        return loader_.begin(unit, 0);
    }
}

void Runtime::note_wait(const Unit& unit, uint64_t began_ns, uint32_t* view_flags) {
    const uint64_t ended_ns = device_->backend().now_ns();
    stats_.host_waits++;
    stats_.stall_ns += ended_ns - began_ns;
    if (telemetry::trace_on()) telemetry::trace_wait(gate_.name().c_str(), registry_.name_of(unit).c_str(), began_ns, ended_ns);
    *view_flags |= SH_VIEW_WAITED;
}

// Orders the stream after what still reads and writes the unit, or waits where that cannot be.
Status Runtime::finish_bringing(Unit& unit, sh_stream stream, uint32_t flags, uint32_t* view_flags, Lock& lock) {
    if (unit.arrives())
        if (Status status = follow_launch(unit, stream, flags, view_flags, lock); status.code() != SH_OK) return status;
    if (unit.hindered_by(kBeingRead)) {
        bool waited = false;
        const uint64_t began = device_->backend().now_ns();
        Status status = write_back_.order_after(unit, stream, !(flags & SH_ACQUIRE_NO_WAIT), lock, &waited);
        if (waited) note_wait(unit, began, view_flags);
        if (status.code() != SH_OK) return status;
        if (gate_.closing()) return usable();
    }
    const bool queued = unit.load_queued();
    if (unit.load() && !queued && !unit.load()->issued) return loader_.wait_issued(unit, lock, 0);   // it has failed since it was begun
    Status failure;
    if (!queued && loader_.settle(unit, &failure)) {
        SH_TRY(failure);
        return unit.complete() ? Status() : loader_.last_failure().within(registry_.name_of(unit));
    }
    if ((queued || stream == SH_STREAM_HOST) && (flags & SH_ACQUIRE_NO_WAIT)) return Status(SH_NOT_READY);
    if (queued || stream == SH_STREAM_HOST) {
        const uint64_t began = device_->backend().now_ns();
        Status status = loader_.wait_issued(unit, lock, 0);
        if (status.ok() && stream == SH_STREAM_HOST) status = loader_.wait_done(unit, lock);
        note_wait(unit, began, view_flags);
        SH_TRY(status);
        if (gate_.closing()) return usable();
        if (!unit.complete()) return loader_.last_failure().within(registry_.name_of(unit));   // met by another caller that waited for it too
    }
    if (stream == SH_STREAM_HOST || !unit.load()) return Status();
    return device_->backend().stream_wait_event(stream, unit.load()->done);
}

// The same, and notes whether all was there when it was asked for. `waited`: the call has waited for other bytes, while which these may have come.
Status Runtime::finish_and_note(Unit& unit, sh_stream stream, uint32_t flags, uint32_t* view_flags, bool* waited, Lock& lock) {
    const bool may_have_come = *waited && (unit.load() || unit.arrives());
    Status status = finish_bringing(unit, stream, flags, view_flags, lock);
    *waited = *waited || *view_flags & SH_VIEW_WAITED;
    const bool hit = (*view_flags & (SH_VIEW_HIT | SH_VIEW_WAITED)) == SH_VIEW_HIT;
    if (hit && !may_have_come && !unit.load() && !unit.arrives()) *view_flags |= kInTime;
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
    const Gate::Inside inside(gate_);
    uint32_t view_flags = 0;
    Status status;
    bool arrived = false, again = false, waited = false;
    do {   // again when another call has given up the load, or its source has changed before the view was given
        view_flags = 0;
        status = begin_bringing(unit, &view_flags, lock);
        if (status.ok() && block.id != id) status = unknown_block(id);
        if (!status.ok()) break;
        // Held from here on, so that nobody takes the pages while the mutex is given up.
        hold(block, unit);
        const bool asked_before = std::exchange(unit.announced, false);   // and was told that it is not ready
        if (asked_before) view_flags &= ~uint32_t(SH_VIEW_HIT);
        if (!std::exchange(arrived, true) && !asked_before) arrive(unit);
        status = no_throw([&] { return finish_and_note(unit, stream, flags, &view_flags, &waited, lock); });
        again = status.code() == SH_ERROR_CANCELLED || (status.code() == SH_OK && unit.stale());
        unit.announced = status.code() == SH_NOT_READY;
        if (status.code() != SH_OK || again) unhold(block, unit);
    } while (again && !gate_.closing());
    if (again && status.ok()) status = usable();
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
    const Gate::Inside inside(gate_);
    // All are begun and held first: holding keeps them from pushing each other out.
    for (; held < ids.size() && status.code() == SH_OK; held++) {
        Block* block = registry_.find(ids[held]);
        if (!block) {
            status = unknown_block(ids[held]);
            break;
        }
        Unit& unit = registry_.unit(block->unit);
        status = no_throw([&] { return begin_bringing(unit, &view_flags[held], lock); });
        if (status.ok() && block->id != ids[held]) status = unknown_block(ids[held]);
        if (status.code() != SH_OK) break;
        hold(*block, unit);
        if (std::exchange(unit.announced, false)) view_flags[held] &= ~uint32_t(SH_VIEW_HIT);
        else arrive(unit);
    }
    bool waited = false;
    for (size_t i = 0; i < held && status.code() == SH_OK; i++)
        status = no_throw([&] { return finish_and_note(registry_.unit(registry_.find(ids[i])->unit), stream, flags, &view_flags[i], &waited, lock); });
    if (status.code() == SH_NOT_READY)
        for (size_t i = 0; i < held; i++) registry_.unit(registry_.find(ids[i])->unit).announced = true;
    if (status.code() == SH_ERROR_CANCELLED && !gate_.closing())   // by an update of a source: begin_bringing() would say so now
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

Status Runtime::end_view(Block& block, sh_stream stream) {
    Unit& unit = registry_.unit(block.unit);
    Status status;
    if (stream != SH_STREAM_HOST) {
        status = no_throw([&] { return contents_.note_use(unit, stream, !gate_.in_step() || thread_stream::is_name(stream)); });
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
    if (unit.held == 0 && unit.dirty() && status.ok()) status = no_throw([&] { return write_back_.begin(unit, WriteBack::Part::ring); });
    return status;
}

Status Runtime::release(sh_block id, sh_stream stream, Lock& lock) {
    Block* const block = registry_.find(id);
    if (!block) return unknown_block(id);
    if (block->held == 0) return Status(SH_ERROR_INVALID_STATE, registry_.name_of(*block) + " is not held");
    if (gate_.closing()) return usable();
    if (capture_) return capture_release(*block, stream);
    Status status = end_view(*block, stream);
    if (telemetry::trace_on()) [[unlikely]] loader_.settle_all();
    if (eventful_ && may_prefetch() && status.ok() && (gate_.in_step() || order_.known()))
        prefetcher_.pump(device_->backend().now_ns(), stream == SH_STREAM_HOST);
    if (status.ok()) status = write_back_.take_failure();
    return status.ok() ? leave_if_due(lock) : note(status);
}

Status Runtime::prefetch(std::span<const sh_block> ids, Lock& lock) {
    SH_TRY(usable());
    for (const sh_block id : ids)
        if (!registry_.find(id)) return unknown_block(id);
    if (capture_ || entered_) return Status();   // a hint
    const Gate::Inside inside(gate_);
    for (const sh_block id : ids) {
        Block* const block = registry_.find(id);
        if (!block || gate_.closing() || gate_.changing() || capture_ || entered_) break;
        Unit& unit = registry_.unit(block->unit);
        if (unit.held || unit.bringing || unit.load() || order_.contains(block->unit) || !drop_if_stale(unit)) continue;
        const Gate::Bringing bringing(gate_, unit);
        if (unit.memory == Memory::none && !(planned_ && place_unordered(unit, lock).ok())) break;   // a hint: the acquire will say what is wrong
        // Asked after the mutex may have been given up. What is in the way stays: nothing is taken from others for a hint.
        if (gate_.closing() || entered_ || unit.complete() || !drop_if_stale(unit) || contents_.in_the_way(unit).kind != Obstacle::none) continue;
        if (!loader_.begin(unit, device_->backend().now_ns()).ok()) break;
    }
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
    if (unit.load() && unit.load()->issued) SH_TRY(backend.stream_wait_event(copies, unit.load()->done));   // `stream` may not be the acquire's
    const Gate::Inside inside(gate_);
    return note(unlocked(lock, [&] {
        Status status = backend.copy_to_host(copies, buffer, address, bytes);
        return status.ok() ? backend.stream_synchronize(copies) : status;
    }));
}

}  // namespace stagehand::core
