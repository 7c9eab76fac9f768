#include "core/runtime/access.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/no_throw.h"
#include "base/scratch.h"
#include "base/unlocked.h"
#include "telemetry/trace.h"

namespace stagehand::core {
namespace {

// More than one, because a change of another caller may run in place of this caller's and may fail.
constexpr int kPlansInAnAcquire = 2;

}  // namespace

void Access::look_ahead(uint64_t now_ns, bool in_parts) {
    if (!parts_.gate.is_open()) return;
    if (plan_.exists() && !graphs_.entered()) parts_.prefetcher.pump(now_ns, in_parts);
}

Status Access::release(Block& block, sh_stream stream) {
    Status status = views_.end(block, stream);
    if (telemetry::trace_on()) [[unlikely]]
        parts_.loader.settle_all();
    if (status.ok() && (parts_.gate.in_step() || parts_.order.known()))
        look_ahead(parts_.backend().now_ns(), stream == SH_STREAM_HOST);
    return status.ok() ? parts_.take_failure() : parts_.gate.note(status);
}

// The engine has come to this unit. Moves on in the order, and learns the order, which has no unordered units.
void Access::arrive(Unit& unit) {
    const uint32_t index = parts_.registry.index_of(unit);
    if (parts_.record.under_way() && !unit.unordered) parts_.record.add(index);
    const uint64_t before = parts_.order.position().cursor();
    const bool had_deviated = parts_.order.position().deviated();
    if (parts_.order.arrive(index)) {
        const uint64_t cursor = parts_.order.position().cursor();
        if (cursor > before) parts_.device->links().passed(parts_.order.followed().at(cursor - 1).compute_ns);
        if (cursor > before + 1) parts_.prefetcher.restart();
    }
    // The step may be one of another kind. Only its first departure tells.
    if (!had_deviated && parts_.order.position().deviated() && parts_.record.under_way() &&
        parts_.order.recognise(parts_.record.entries()))
        parts_.prefetcher.renew();
}

Status Access::place_unordered(Unit& unit, Lock& lock) {
    SH_TRY(parts_.unordered.place(unit, lock));
    if (unit.protections) plan_.tell_kept();  // from here on, some pages of the unit must stay
    return Status();
}

// Makes sure that all of the unit's bytes are present or on their way. The caller does not count the unit as held yet.
// The loop checks everything again after the mutex was given up.
Status Access::begin_bringing(Unit& unit, uint32_t* view_flags, Lock& lock) {
    std::optional<Gate::Bringing> bringing;
    std::optional<UnorderedCache::Pin> pin;
    int plans = 0;
    for (;;) {
        SH_TRY(parts_.gate.running());
        // A change of the plan waits for the calls that are bringing units.
        if (!bringing && (parts_.gate.changing() || unit.bringing)) {
            parts_.gate.wait(lock,
                             [&] { return (!unit.bringing && !parts_.gate.changing()) || parts_.gate.closing(); });
            continue;
        }
        if (!unit.live) return Status(SH_ERROR_INVALID_HANDLE, "the block was unregistered while the call waited");
        if (unit.updating())
            return Status(SH_ERROR_INVALID_STATE,
                          parts_.registry.name_of(unit) + " cannot be acquired while its source is being updated");
        if (graphs_.entered() && unit.ring_pages)
            return Status(SH_ERROR_INVALID_STATE,
                          parts_.registry.name_of(unit) + " is streamed and cannot be loaded: a graph of " +
                              parts_.gate.title() + " was entered and not left: call sh_graph_leave() first");
        bool waited = false;
        SH_TRY(clearance_.make_current(unit, &waited, lock));
        if (waited) continue;
        if (unit.memory != Memory::none && unit.complete() && !unit.stale()) {
            if (!bringing) *view_flags |= SH_VIEW_HIT;
            return Status();
        }
        if (unit.held)
            return Status(SH_ERROR_HELD, parts_.registry.name_of(unit) +
                                             " must be loaded again: first release all views of it "
                                             "and of the blocks that share its pages");
        if (graphs_.entered_unpacks() && unit.packed_tensors)
            return Status(SH_ERROR_INVALID_STATE,
                          parts_.registry.name_of(unit) + " is packed and cannot be loaded: a graph of " +
                              parts_.gate.title() +
                              " that unpacks weights was entered and not left: call sh_graph_leave() first");
        const bool wants_plan = !plan_.exists() || (plan_.is_wanted() && !parts_.gate.in_step() &&
                                                    parts_.gate.views() == 0 && !graphs_.hold_the_plan());
        if (unit.memory == Memory::none && wants_plan && plans < kPlansInAnAcquire) {
            plans++;
            plan_.use_all();
            bringing.reset();  // the change would wait for this call
            SH_TRY(plan_.change(lock, true));
            continue;
        }
        if (!bringing) bringing.emplace(parts_.gate, unit);
        if (unit.memory == Memory::none) {
            SH_TRY(place_unordered(unit, lock));
            *view_flags |= SH_VIEW_REMAPPED;
            continue;
        }
        if (unit.memory == Memory::unordered && !pin) pin.emplace(parts_.unordered, unit);
        if (const Obstacle obstacle = parts_.contents.in_the_way(unit); obstacle.kind != Obstacle::none) {
            SH_TRY(clearance_.remove(obstacle, &unit, lock));
            continue;
        }
        parts_.prefetcher.restart();
        return parts_.loader.begin(unit, 0);
    }
}

// Makes the stream wait for the copies that still read or write the unit. Waits on the host if the stream cannot wait.
Status Access::finish_bringing(Unit& unit, sh_stream stream, uint32_t flags, uint32_t* view_flags, Lock& lock) {
    if (unit.arrives())
        if (Status status = graphs_.follow_launch(unit, stream, flags, view_flags, lock); status.code() != SH_OK)
            return status;
    if (unit.hindered_by(kBeingRead)) {
        bool waited = false;
        const uint64_t began = parts_.backend().now_ns();
        Status status = parts_.write_back.order_after(unit, stream, !(flags & SH_ACQUIRE_NO_WAIT), lock, &waited);
        if (waited) views_.note_wait(unit, began, view_flags);
        if (status.code() != SH_OK) return status;
        if (parts_.gate.closing()) return parts_.gate.usable();
    }
    const bool queued = unit.load_queued();
    if (unit.load() && !queued && !unit.load()->issued)
        return parts_.loader.wait_issued(unit, lock, 0);  // the load has failed since it was begun
    Status failure;
    if (!queued && parts_.loader.settle(unit, &failure)) {
        SH_TRY(failure);
        return unit.complete() ? Status() : parts_.loader.last_failure().within(parts_.registry.name_of(unit));
    }
    if ((queued || stream == SH_STREAM_HOST) && (flags & SH_ACQUIRE_NO_WAIT)) return Status(SH_NOT_READY);
    if (queued || stream == SH_STREAM_HOST) {
        const uint64_t began = parts_.backend().now_ns();
        Status status = parts_.loader.wait_issued(unit, lock, 0);
        if (status.ok() && stream == SH_STREAM_HOST) status = parts_.loader.wait_done(unit, lock);
        views_.note_wait(unit, began, view_flags);
        SH_TRY(status);
        if (parts_.gate.closing()) return parts_.gate.usable();
        // The failure may have been reported to another caller that waited for the load too.
        if (!unit.complete()) return parts_.loader.last_failure().within(parts_.registry.name_of(unit));
    }
    if (stream == SH_STREAM_HOST || !unit.load()) return Status();
    parts_.device->links().to_device.arrived(unit.load()->link_mark);
    SH_TRY(parts_.backend().stream_wait_event(stream, unit.load()->done));
    parts_.contents.waits(unit, stream);
    return Status();
}

// Does the same, and notes whether all bytes were present when the caller asked. `waited`: the call has waited for
// other bytes, and these bytes may have come meanwhile.
Status Access::finish_and_note(Unit& unit, sh_stream stream, uint32_t flags, uint32_t* view_flags, bool* waited,
                               Lock& lock) {
    const bool may_have_come = *waited && (unit.load() || unit.arrives());
    Status status = finish_bringing(unit, stream, flags, view_flags, lock);
    *waited = *waited || *view_flags & SH_VIEW_WAITED;
    const bool hit = (*view_flags & (SH_VIEW_HIT | SH_VIEW_WAITED)) == SH_VIEW_HIT;
    if (hit && !may_have_come && !unit.load() && !unit.arrives()) *view_flags |= Views::kInTime;
    return status;
}

void Access::give(Block& block, Unit& unit, sh_stream stream, uint32_t view_flags, sh_view* out) {
    views_.give(block);
    views_.count_acquire(view_flags);
    if (unit.memory == Memory::unordered) parts_.unordered.touch(unit);
    if (parts_.meter.measuring() && unit.held == 1) parts_.meter.begin(parts_.registry.index_of(unit), stream);
    views_.fill(block, unit, view_flags, out);
}

Status Access::acquire(sh_block id, sh_stream stream, uint32_t flags, sh_view* out, Lock& lock) {
    SH_TRY(parts_.check_no_capture(stream));
    Block* const found = parts_.registry.find(id);
    if (!found) return parts_.unknown_block(id);
    Block& block = *found;
    Unit& unit = parts_.registry.unit(block.unit);
    const Gate::Inside inside(parts_.gate);
    uint32_t view_flags = 0;
    Status status;
    bool arrived = false, again = false, waited = false;
    // Tries again if another call has cancelled the load, or if the source changed before the view was given.
    do {
        view_flags = 0;
        status = begin_bringing(unit, &view_flags, lock);
        if (status.ok() && block.id != id) status = parts_.unknown_block(id);
        if (!status.ok()) break;
        // The unit is held from here on, so that nobody takes its pages while the mutex is given up.
        views_.hold(block, unit);
        const bool asked_before = std::exchange(unit.announced, false);  // the engine was told SH_NOT_READY
        if (asked_before) view_flags &= ~uint32_t(SH_VIEW_HIT);
        if (!std::exchange(arrived, true) && !asked_before) arrive(unit);
        status = no_throw([&] { return finish_and_note(unit, stream, flags, &view_flags, &waited, lock); });
        again = status.code() == SH_ERROR_CANCELLED || (status.code() == SH_OK && unit.stale());
        unit.announced = status.code() == SH_NOT_READY;
        if (status.code() != SH_OK || again) views_.give_up(block, unit);
    } while (again && !parts_.gate.closing());
    if (again && status.ok()) status = parts_.gate.usable();
    if (status.code() != SH_OK) return parts_.gate.note(status);
    give(block, unit, stream, view_flags, out);
    return Status();
}

Status Access::acquire_many(std::span<const sh_block> ids, sh_stream stream, uint32_t flags,
                            std::span<sh_view* const> out, Lock& lock) {
    SH_TRY(parts_.check_no_capture(stream));
    Scratch<uint32_t> scratch;
    std::vector<uint32_t>& view_flags = *scratch;
    view_flags.assign(ids.size(), 0);
    size_t held = 0;
    Status status;
    const Gate::Inside inside(parts_.gate);
    // All units are begun and held first. Holding them prevents that they evict each other.
    for (; held < ids.size() && status.code() == SH_OK; held++) {
        Block* block = parts_.registry.find(ids[held]);
        if (!block) {
            status = no_throw([&] { return parts_.unknown_block(ids[held]); });
            break;
        }
        Unit& unit = parts_.registry.unit(block->unit);
        status = no_throw([&] { return begin_bringing(unit, &view_flags[held], lock); });
        if (status.ok() && block->id != ids[held]) status = no_throw([&] { return parts_.unknown_block(ids[held]); });
        if (status.code() != SH_OK) break;
        views_.hold(*block, unit);
        if (std::exchange(unit.announced, false))
            view_flags[held] &= ~uint32_t(SH_VIEW_HIT);
        else
            arrive(unit);
    }
    bool waited = false;
    for (size_t i = 0; i < held && status.code() == SH_OK; i++)
        status = no_throw([&] {
            Unit& unit = parts_.registry.unit(parts_.registry.find(ids[i])->unit);
            return finish_and_note(unit, stream, flags, &view_flags[i], &waited, lock);
        });
    if (status.code() == SH_NOT_READY)
        for (size_t i = 0; i < held; i++) parts_.registry.unit(parts_.registry.find(ids[i])->unit).announced = true;
    // An update of a source has cancelled the load. begin_bringing() would report the update now.
    if (status.code() == SH_ERROR_CANCELLED && !parts_.gate.closing())
        status =
            Status(SH_ERROR_INVALID_STATE, "the load of a block was cancelled because its source is being updated");
    for (size_t i = 0; i < held; i++) {
        Block& block = *parts_.registry.find(ids[i]);
        Unit& unit = parts_.registry.unit(block.unit);
        if (status.code() != SH_OK) {
            views_.give_up(block, unit);
            continue;
        }
        give(block, unit, stream, view_flags[i], out[i]);
    }
    return parts_.gate.note(status);
}

Status Access::prefetch(std::span<const sh_block> ids, Lock& lock) {
    if (graphs_.entered()) return Status();  // prefetch is a hint
    const Gate::Inside inside(parts_.gate);
    for (const sh_block id : ids) {
        Block* const block = parts_.registry.find(id);
        if (!block || parts_.gate.closing() || parts_.gate.changing() || graphs_.entered() || graphs_.capturing())
            break;
        Unit& unit = parts_.registry.unit(block->unit);
        if (unit.held || unit.bringing || unit.load() || parts_.order.contains(block->unit) ||
            !clearance_.drop_if_stale(unit))
            continue;
        const Gate::Bringing bringing(parts_.gate, unit);
        if (unit.memory == Memory::none && !(plan_.exists() && place_unordered(unit, lock).ok()))
            break;  // prefetch is a hint: the acquire will report the error
        // Checked again, because the mutex may have been given up. Obstacles stay: a hint takes nothing from others.
        if (parts_.gate.closing() || graphs_.entered() || graphs_.capturing() || unit.complete() ||
            !clearance_.drop_if_stale(unit))
            continue;
        if (parts_.contents.in_the_way(unit).kind != Obstacle::none) continue;
        if (!parts_.loader.begin(unit, parts_.backend().now_ns()).ok()) break;
    }
    return Status();
}

}  // namespace stagehand::core
