// Pauses: takes a runtime off the device, and brings it back.
#pragma once

#include <string>

#include "base/status.h"
#include "core/device/pausables.h"
#include "core/memory/model_memory.h"
#include "core/runtime/access.h"
#include "core/runtime/captures.h"
#include "core/runtime/gate.h"
#include "core/runtime/graphs.h"
#include "core/runtime/plan_in_force.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class Pauses {
public:
    Pauses(Gate& gate, ModelMemory& memory, PlanInForce& plan, Graphs& graphs, Access& access)
        : gate_(gate),
          memory_(memory),
          plan_(plan),
          graphs_(graphs),
          access_(access),
          tag_(runtime_tag_of(gate.name())) {}

    // See Pausable. Graphs that can be launched stay so: their blocks come back to the same places.
    Status release(Lock& lock);
    Status take(Lock& lock);
    // The next blocks in the order begin to come.
    void run();

    const std::string& tag() const { return tag_; }  // that names the runtime in a pause
    uint64_t cycles() const { return cycles_; }

private:
    Status leave(Lock& lock);

    Gate& gate_;
    ModelMemory& memory_;
    PlanInForce& plan_;
    Graphs& graphs_;
    Access& access_;
    const std::string tag_;
    uint64_t cycles_ = 0;
};

}  // namespace stagehand::core
