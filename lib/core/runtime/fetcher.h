// Fetcher: fetches the bytes of a block that is acquired. The Prefetcher fetches what is needed later.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "core/runtime/clearance.h"
#include "core/runtime/graphs.h"
#include "core/runtime/plan_in_force.h"
#include "core/runtime/step_order.h"
#include "core/runtime/views.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods, and no capture is under way.
class Fetcher {
public:
    Fetcher(Gate& gate, ModelMemory& memory, Movers& movers, StepOrder& step_order, Clearance& clearance, Views& views,
            PlanInForce& plan, Graphs& graphs)
        : gate_(gate),
          memory_(memory),
          movers_(movers),
          step_order_(step_order),
          clearance_(clearance),
          views_(views),
          plan_(plan),
          graphs_(graphs) {}

    // Makes sure that all of the unit's bytes are present or on their way. The caller does not count the unit as held
    // yet.
    Status begin(Unit& unit, uint32_t* view_flags, Lock& lock);
    // Makes the stream wait for the bytes, and notes whether all were present when the caller asked. `waited`: the call
    // has waited for other bytes, and these bytes may have come meanwhile.
    Status finish(Unit& unit, sh_stream stream, uint32_t flags, uint32_t* view_flags, bool* waited, Lock& lock);
    // Begins to load a unit that may be acquired. Returns false if no more can be loaded.
    // `chance`: how probable its use is.
    bool hint(Unit& unit, double chance, Lock& lock);

private:
    Status wait_for_copies(Unit& unit, sh_stream stream, uint32_t flags, uint32_t* view_flags, Lock& lock);
    Status place_unordered(Unit& unit, Lock& lock);
    Status place_hinted(Unit& unit, double chance, Lock& lock);

    Gate& gate_;
    ModelMemory& memory_;
    Movers& movers_;
    StepOrder& step_order_;
    Clearance& clearance_;
    Views& views_;
    PlanInForce& plan_;
    Graphs& graphs_;
};

}  // namespace stagehand::core
