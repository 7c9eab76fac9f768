// Clearance: removes the obstacles of a load. It waits for them, writes them back or drops them, or reports why an
// obstacle stays.
#pragma once

#include "base/status.h"
#include "core/memory/contents.h"
#include "core/runtime/movers.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods. A method may give the mutex up. The caller then checks the state
// again.
class Clearance {
public:
    explicit Clearance(Gate& gate, ModelMemory& memory, Movers& movers)
        : gate_(gate), memory_(memory), movers_(movers) {}

    // Drops the unit's contents if they are out of date. Returns false if they stay for now, because the unit is held,
    // its load is queued, or the engine's changes of it are not written back yet.
    bool drop_if_stale(Unit& unit);
    // Removes one thing that hides the unit's current state: a failed or outdated load, or contents that are out of
    // date. `out_waited`: there was such a thing, and the mutex may have been given up.
    Status make_current(Unit& unit, bool* out_waited, Lock& lock);
    // Removes the obstacle, or reports why it stays. `wanted` is the unit that is to be loaded. It is null if the
    // obstacle is in the way of a graph. The mutex may be given up. The caller then asks again for the next obstacle.
    Status remove(const Obstacle& obstacle, const Unit* wanted, Lock& lock);
    Status held_by(const Unit& wanted, Unit& holder) const;

private:
    Gate& gate_;
    ModelMemory& memory_;
    Movers& movers_;
};

}  // namespace stagehand::core
