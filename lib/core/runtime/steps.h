// Steps: the beginning and end of a step, and the order in which a step uses the blocks. The order is given or learned.
#pragma once

#include <span>

#include <stagehand/runtime.h>

#include "base/status.h"
#include "core/runtime/access.h"
#include "core/runtime/captures.h"
#include "core/runtime/graphs.h"
#include "core/runtime/parts.h"
#include "core/runtime/plan_in_force.h"
#include "core/runtime/step_count.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class Steps {
public:
    Steps(Parts& parts, PlanInForce& plan, const Captures& captures, Graphs& graphs, Access& access, StepCount& count)
        : parts_(parts), plan_(plan), captures_(captures), graphs_(graphs), access_(access), count_(count) {}

    Status set_schedule(std::span<const sh_use> uses);
    // `kind_name` may be null: the step then tells its kind by itself.
    Status begin(const char* kind_name, Lock& lock);
    Status end();

private:
    void learn();
    void follow(uint32_t order) noexcept;

    Parts& parts_;
    PlanInForce& plan_;
    const Captures& captures_;
    Graphs& graphs_;
    Access& access_;
    StepCount& count_;
    StepCount::Span span_;  // of the step that is under way
};

}  // namespace stagehand::core
