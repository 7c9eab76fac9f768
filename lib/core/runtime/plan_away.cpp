// The plan of a runtime that a pause takes off the device, and its return.
#include <algorithm>
#include <utility>

#include "base/no_throw.h"
#include "core/runtime/plan_in_force.h"
#include "telemetry/trace.h"

namespace stagehand::core {

Status PlanInForce::leave(bool keeps_places, Lock& lock) {
    return behind_closed_door(lock, [&] {
        SH_TRY(parts_.gate.unused());  // again, because the door had to be waited for
        away_ = {exists_,
                 keeps_places,
                 wanted_,
                 false,
                 keeps_places ? parts_.placement.places() : std::vector<Place>(),
                 parts_.ring.size(),
                 parts_.unordered.capacity(),
                 parts_.unpack_memory.plan(),
                 keeps_places ? parts_.placement.kept_places() : std::vector<uint64_t>()};
        SH_TRY(empty(lock));
        wanted_ = away_.wanted;  // a plan that is wanted from now on is made after the return
        if (!keeps_places) plan_ = {};
        exists_ = false;
        parts_.device->arbiter().withdraw(parts_.tenant);
        parts_.gate.set_occupancy(SH_OCCUPANCY_RELEASED);
        telemetry::trace_memory(parts_.gate.name().c_str(), parts_.backend().now_ns(), 0);
        return parts_.device->pool().trim(0);
    });
}

Status PlanInForce::come_back(bool keeps_places, Lock& lock) {
    return behind_closed_door(lock, [&] {
        if (!away_.planned) return Status();  // memory comes with the first use, as before
        const bool same = keeps_places && away_.keeps_places;
        if (!same) plan_ = {};
        const Status status = no_throw([&] { return same ? take_places(lock) : change_plan_again(lock, true); });
        if (status.ok()) return tell_less_kept(), Status();
        parts_.device->arbiter().withdraw(parts_.tenant);
        (void)parts_.device->pool().trim(0).ok();  // pages that were made and not mapped
        return status.within(parts_.gate.title() + " stays released");
    });
}

Status PlanInForce::repair(Lock& lock) {
    return behind_closed_door(lock, [&] {
        SH_TRY(take_places(lock));
        wanted_ = away_.wanted;
        return Status();
    });
}

// The blocks' places are those that they had. Blocks that are new since then have none.
Status PlanInForce::take_places(Lock& lock) {
    Needs needs;
    needs.least_pages = plan_.pages();
    needs.wanted_pages = std::max(plan_.pages(), plan_.share_pages);
    uint64_t share = 0;
    SH_TRY(ask_for_share(needs, true, &share, lock));
    away_.places.resize(parts_.registry.units().size());
    SH_TRY(parts_.gate.note(no_throw([&] {
        SH_TRY(get_loader_ready(plan_.bytes_per_step > 0));
        SH_TRY(parts_.placement.apply(away_.places, away_.ring_pages, away_.unpack, away_.kept_places));
        return parts_.unordered.resize(away_.unordered_pages, lock);
    })));
    exists_ = true;
    state_needs();
    Holding held = holding();
    held.pages = share;
    parts_.device->arbiter().settle(parts_.tenant, std::move(held));
    parts_.prefetcher.renew();
    telemetry::trace_memory(parts_.gate.name().c_str(), parts_.backend().now_ns(),
                            parts_.placement.pages() * parts_.page_bytes());
    return Status();
}

// The share was asked for as the places need it. From now on, the runtime may be given as much as it can use. If this
// fails, it is given no more until it plans anew.
void PlanInForce::state_needs() {
    (void)no_throw([&] {
        Planner::Limits with = limits();
        SH_TRY(watch_.speeds().link(&with.link_bytes_per_ns));
        uint64_t share = 0;
        return parts_.device->arbiter().request(parts_.tenant, needs_with_curve(with), false, &share);
    });
}

}  // namespace stagehand::core
