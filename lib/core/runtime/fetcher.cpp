#include "core/runtime/fetcher.h"

#include <optional>

namespace stagehand::core {
namespace {

// More than one, because a change of another caller may run in place of this caller's and may fail.
constexpr int kPlansInAnAcquire = 2;

}  // namespace

Status Fetcher::place_unordered(Unit& unit, Lock& lock) {
    SH_TRY(step_order_.unordered.place(unit, lock));
    if (unit.protections) plan_.claim().tell_kept();  // from here on, some pages of the unit must stay
    return Status();
}

// The loop checks everything again after the mutex was given up.
Status Fetcher::begin(Unit& unit, uint32_t* view_flags, Lock& lock) {
    std::optional<Gate::Bringing> bringing;
    std::optional<UnorderedCache::Pin> pin;
    int plans = 0;
    for (;;) {
        SH_TRY(gate_.running());
        // A change of the plan waits for the calls that are bringing units.
        if (!bringing && (gate_.changing() || unit.bringing)) {
            gate_.wait(lock, [&] { return (!unit.bringing && !gate_.changing()) || gate_.closing(); });
            continue;
        }
        if (!unit.live) return Status(SH_ERROR_INVALID_HANDLE, "the block was unregistered while the call waited");
        if (unit.updating())
            return Status(SH_ERROR_INVALID_STATE,
                          memory_.registry.name_of(unit) + " cannot be acquired while its source is being updated");
        if (gate_.in_graph() && unit.ring_pages)
            return Status(SH_ERROR_INVALID_STATE, memory_.registry.name_of(unit) +
                                                      " is streamed and cannot be loaded: a graph of " + gate_.title() +
                                                      " was entered and not left: call sh_graph_leave() first");
        bool waited = false;
        SH_TRY(clearance_.make_current(unit, &waited, lock));
        if (waited) continue;
        if (unit.memory != Memory::none && unit.complete() && !unit.stale()) {
            if (!bringing) *view_flags |= SH_VIEW_HIT;
            return Status();
        }
        if (unit.held)
            return Status(SH_ERROR_HELD, memory_.registry.name_of(unit) +
                                             " must be loaded again: first release all views of it "
                                             "and of the blocks that share its pages");
        if (graphs_.entered_unpacks() && unit.packed_tensors)
            return Status(SH_ERROR_INVALID_STATE,
                          memory_.registry.name_of(unit) + " is packed and cannot be loaded: a graph of " +
                              gate_.title() +
                              " that unpacks weights was entered and not left: call sh_graph_leave() first");
        const bool wants_plan = !plan_.exists() || (plan_.is_wanted() && !gate_.in_step() && gate_.views() == 0 &&
                                                    !graphs_.hold_the_plan());
        if (unit.memory == Memory::none && wants_plan && plans < kPlansInAnAcquire) {
            plans++;
            plan_.use_all();
            bringing.reset();  // the change would wait for this call
            SH_TRY(plan_.change(lock, true));
            continue;
        }
        if (!bringing) bringing.emplace(gate_, unit);
        if (unit.memory == Memory::none) {
            SH_TRY(place_unordered(unit, lock));
            *view_flags |= SH_VIEW_REMAPPED;
            continue;
        }
        if (unit.memory == Memory::unordered && !pin) pin.emplace(step_order_.unordered, unit);
        if (const Obstacle obstacle = memory_.contents.in_the_way(unit); obstacle.kind != Obstacle::none) {
            SH_TRY(clearance_.remove(obstacle, &unit, lock));
            continue;
        }
        step_order_.prefetcher.restart();
        return movers_.loader.begin(unit, 0);
    }
}

// Makes the stream wait for the copies that still read or write the unit. Waits on the host if the stream cannot wait.
Status Fetcher::wait_for_copies(Unit& unit, sh_stream stream, uint32_t flags, uint32_t* view_flags, Lock& lock) {
    if (unit.arrives())
        if (Status status = graphs_.follow_launch(unit, stream, flags, view_flags, lock); status.code() != SH_OK)
            return status;
    if (unit.hindered_by(kBeingRead)) {
        bool waited = false;
        const uint64_t began = memory_.device.now_ns();
        Status status = movers_.write_back.order_after(unit, stream, !(flags & SH_ACQUIRE_NO_WAIT), lock, &waited);
        if (waited) views_.note_wait(unit, began, view_flags);
        if (status.code() != SH_OK) return status;
        if (gate_.closing()) return gate_.usable();
    }
    const bool queued = unit.load_queued();
    if (unit.load() && !queued && !unit.load()->issued)
        return movers_.loader.wait_issued(unit, lock, 0);  // the load has failed since it was begun
    Status failure;
    if (!queued && movers_.loader.settle(unit, &failure)) {
        SH_TRY(failure);
        return unit.complete() ? Status() : movers_.loader.last_failure().within(memory_.registry.name_of(unit));
    }
    if ((queued || stream == SH_STREAM_HOST) && (flags & SH_ACQUIRE_NO_WAIT)) return Status(SH_NOT_READY);
    if (queued || stream == SH_STREAM_HOST) {
        const uint64_t began = memory_.device.now_ns();
        Status status = movers_.loader.wait_issued(unit, lock, 0);
        if (status.ok() && stream == SH_STREAM_HOST) status = movers_.loader.wait_done(unit, lock);
        views_.note_wait(unit, began, view_flags);
        SH_TRY(status);
        if (gate_.closing()) return gate_.usable();
        // The failure may have been reported to another caller that waited for the load too.
        if (!unit.complete()) return movers_.loader.last_failure().within(memory_.registry.name_of(unit));
    }
    if (stream == SH_STREAM_HOST || !unit.load()) return Status();
    return movers_.loader.order_before(unit, stream);
}

Status Fetcher::finish(Unit& unit, sh_stream stream, uint32_t flags, uint32_t* view_flags, bool* waited, Lock& lock) {
    const bool may_have_come = *waited && (unit.load() || unit.arrives());
    Status status = wait_for_copies(unit, stream, flags, view_flags, lock);
    *waited = *waited || *view_flags & SH_VIEW_WAITED;
    const bool hit = (*view_flags & (SH_VIEW_HIT | SH_VIEW_WAITED)) == SH_VIEW_HIT;
    if (hit && !may_have_come && !unit.load() && !unit.arrives()) *view_flags |= Views::kInTime;
    return status;
}

// The acquire will report an error.
Status Fetcher::place_hinted(Unit& unit, double chance, Lock& lock) {
    if (unit.is_member()) return step_order_.unordered.sets().guess(unit, chance, lock);
    return unit.memory == Memory::none ? place_unordered(unit, lock) : Status();
}

bool Fetcher::hint(Unit& unit, double chance, Lock& lock) {
    if (unit.held || unit.bringing || unit.load() || !clearance_.drop_if_stale(unit)) return true;
    const Gate::Bringing bringing(gate_, unit);
    if (unit.memory == Memory::none && !plan_.exists()) return false;
    if (place_hinted(unit, chance, lock).code() != SH_OK) return false;
    // Checked again, because the mutex may have been given up. Obstacles stay: a hint takes nothing from others.
    if (gate_.closing() || gate_.in_graph() || gate_.capturing() || unit.complete() ||
        !clearance_.drop_if_stale(unit) || memory_.contents.in_the_way(unit).kind != Obstacle::none)
        return true;
    return movers_.loader.begin(unit, memory_.device.now_ns()).ok();
}

}  // namespace stagehand::core
