// Steps: the beginning and end of a step, the plan that it needs, and the order in which a step uses the blocks. The
// order is given or learned.
#pragma once

#include <span>

#include <stagehand/runtime.h>

#include "base/status.h"
#include "core/runtime/access.h"
#include "core/runtime/graphs.h"
#include "core/runtime/plan_in_force.h"
#include "core/runtime/step_count.h"
#include "core/runtime/step_order.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class Steps {
public:
    Steps(Gate& gate, ModelMemory& memory, Movers& movers, StepOrder& step_order, PlanInForce& plan, Graphs& graphs,
          Access& access, StepCount& count)
        : gate_(gate),
          memory_(memory),
          movers_(movers),
          step_order_(step_order),
          plan_(plan),
          graphs_(graphs),
          access_(access),
          count_(count) {}

    Status set_schedule(std::span<const sh_use> uses);
    // Describes the plan that is in force afterwards, or that would be. See sh_plan().
    Status plan(const sh_plan_options& options, PlanResult* out, Lock& lock);
    // `kind_name` may be null: the step then tells its kind by itself.
    Status begin(const char* kind_name, Lock& lock);
    Status end();

private:
    void learn();

    Gate& gate_;
    ModelMemory& memory_;
    Movers& movers_;
    StepOrder& step_order_;
    PlanInForce& plan_;
    Graphs& graphs_;
    Access& access_;
    StepCount& count_;
    StepCount::Span span_;  // of the step that is under way
};

}  // namespace stagehand::core
