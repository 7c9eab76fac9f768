#include "core/runtime/clearance.h"

namespace stagehand::core {

bool Clearance::drop_if_stale(Unit& unit) {
    if (!unit.stale()) return true;
    if (unit.held || unit.load_queued() || memory_.changes.is_changed(unit)) return false;
    memory_.contents.drop(unit);
    return true;
}

Status Clearance::make_current(Unit& unit, bool* out_waited, Lock& lock) {
    *out_waited = true;
    if (unit.load() && !unit.load_queued() && !unit.load()->issued) {
        // A prefetch has failed meanwhile. Its failure is reported to the caller that needs the bytes, unless the
        // prefetch was only cancelled.
        Status failure = movers_.loader.wait_issued(unit, lock, 0);
        return failure.code() == SH_ERROR_CANCELLED ? Status() : failure;
    }
    if (!drop_if_stale(unit) && !unit.held) {
        if (unit.load_queued())
            movers_.loader.cancel(unit, lock);
        else
            SH_TRY(movers_.write_back.flush(unit, lock));
        return Status();
    }
    *out_waited = false;
    return Status();
}

Status Clearance::remove(const Obstacle& obstacle, const Unit* wanted, Lock& lock) {
    Unit& there = memory_.registry.unit(obstacle.unit);
    switch (obstacle.kind) {
        case Obstacle::none:
            return Status();
        case Obstacle::updating:
            return Status(SH_ERROR_INVALID_STATE,
                          memory_.registry.name_of(there) + " cannot be loaded while its source is being updated");
        case Obstacle::held:
            if (wanted) return held_by(*wanted, there);
            return Status(SH_ERROR_HELD, gate_.title() + ": the graph needs memory that a view of " +
                                             memory_.registry.name_of(there) + " holds: release the view first");
        case Obstacle::loading:
            movers_.loader.cancel(there, lock);
            break;
        case Obstacle::dirty:
            SH_TRY(movers_.write_back.begin(there, WriteBack::Part::ring));
            break;
        case Obstacle::writing:
            SH_TRY(movers_.write_back.wait(there, lock));
            break;
    }
    return gate_.usable();
}

Status Clearance::held_by(const Unit& wanted, Unit& holder) const {
    std::string who = memory_.registry.name_of(holder);
    for (const Block& block : memory_.registry.blocks_of(holder))
        if (block.held) who = memory_.registry.name_of(block);
    return Status(SH_ERROR_HELD, memory_.registry.name_of(wanted) + " needs memory that a view of " + who +
                                     " holds: release the view, or create " + gate_.title() +
                                     " with a larger max_held");
}

}  // namespace stagehand::core
