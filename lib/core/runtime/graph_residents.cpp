#include "core/runtime/graph_residents.h"

namespace stagehand::core {

Status GraphResidents::bring(const Graph& graph, sh_stream stream, Lock& lock) {
    SH_TRY(clear_ring(lock));
    SH_TRY(load_units(graph, stream, lock));
    SH_TRY(clear_ring(lock));  // again, because the mutex was given up
    if (!graph.unpack_memory) return Status();
    for (const uint32_t index : graph.units) SH_TRY(movers_.loader.bring_kept(memory_.registry.unit(index)));
    return Status();
}

// After this call nobody needs the contents of the ring any more, because the graph overwrites them without asking.
Status GraphResidents::clear_ring(Lock& lock) {
    for (;;) {  // checked again after each wait
        SH_TRY(gate_.usable());
        if (gate_.bringings()) {
            gate_.wait(lock, [&] { return gate_.bringings() == 0 || gate_.closing(); });
            continue;
        }
        const Obstacle obstacle = memory_.contents.in_the_ring();
        if (obstacle.kind == Obstacle::none) return Status();
        SH_TRY(clearance_.remove(obstacle, nullptr, lock));
    }
}

// Loads the pages of the unit that the plan keeps resident. They are present or on their way when this call returns.
Status GraphResidents::load_own(Unit& unit, Lock& lock) {
    for (;;) {  // checked again after each wait
        SH_TRY(gate_.usable());
        if (unit.updating())
            return Status(SH_ERROR_INVALID_STATE,
                          memory_.registry.name_of(unit) + " cannot be loaded while its source is being updated");
        if (unit.stale() && unit.held)
            return Status(SH_ERROR_HELD,
                          memory_.registry.name_of(unit) + " must be loaded again: release its views first");
        bool waited = false;
        SH_TRY(clearance_.make_current(unit, &waited, lock));
        if (waited) continue;
        if (unit.own_valid() == unit.own.size()) return Status();
        if (unit.load_queued())
            movers_.loader.cancel(unit, lock);
        else if (unit.writing() != Writing::none)
            SH_TRY(movers_.write_back.wait(unit, lock));
        else
            return movers_.loader.begin_part(unit, 0, 0);
    }
}

// Loads the missing resident pages of the graph's blocks.
Status GraphResidents::load_units(const Graph& graph, sh_stream stream, Lock& lock) {
    for (const uint32_t index : graph.units) SH_TRY(load_own(memory_.registry.unit(index), lock));
    for (const uint32_t index : graph.units) {
        Unit& unit = memory_.registry.unit(index);
        if (!unit.load()) continue;
        SH_TRY(movers_.loader.wait_issued(unit, lock, 0));
        Status failure;
        const bool done = movers_.loader.settle(unit, &failure);
        SH_TRY(failure);
        if (!done) SH_TRY(movers_.loader.order_before(unit, stream));
    }
    SH_TRY(gate_.usable());
    for (const uint32_t index : graph.units)
        if (const Unit& unit = memory_.registry.unit(index);
            unit.own_valid() < unit.own.size() || unit.stale() || unit.updating())
            return !movers_.loader.last_failure().ok()
                       ? movers_.loader.last_failure()
                       : Status(SH_ERROR_BUSY,
                                memory_.registry.name_of(unit) + " changed while the graph was being entered");
    return Status();
}

}  // namespace stagehand::core
