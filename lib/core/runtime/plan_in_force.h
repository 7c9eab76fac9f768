// PlanInForce: the plan that is in force in a runtime, and the changes of that plan.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <stagehand/runtime.h>
#include <stagehand/streaming.h>

#include "base/status.h"
#include "core/plan/packed_planner.h"
#include "core/runtime/budget_claim.h"
#include "core/runtime/changes_watch.h"
#include "core/runtime/plan_memory.h"
#include "core/runtime/step_watch.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class PlanInForce {
public:
    PlanInForce(Gate& gate, BudgetShare& share, ModelMemory& memory, Movers& movers, StepOrder& step_order,
                const Protections& protections, const sh_runtime_options& options);

    bool exists() const { return exists_; }
    const PlanResult& result() const { return plan_; }  // all 0 if there is no plan
    // A new plan: blocks, sources, order or protections changed, or the engine asked.
    bool is_wanted() const {
        return wanted_ || memory_.registry.source_changes() != sources_planned_ || changes_.differ();
    }
    void want() { wanted_ = true; }
    bool is_due() const;  // a new plan, at the next edge of a step
    // Some steps are measured. look_at_times() wants a new plan if the engine computes, or its blocks are copied, for
    // other times than planned, and if a new plan is worth the change. What the engine gave is trusted.
    StepWatch& watch() { return watch_; }
    const StepWatch& watch() const { return watch_; }
    void look_at_times();
    // Wants a new plan if the engine changes more or fewer blocks in each step than the plan counts on.
    void look_at_changes() {
        if (exists_ && step_order_.order.known()) changes_.look();
    }

    // Makes a plan for this runtime's share and puts it into force, unless views are held by then. If `press`, idle
    // runtimes that hold more than their share give it back first. The mutex is given up on the way, so the door is
    // closed meanwhile: calls from outside wait in wait_for_change(), and calls inside wait before they begin to load a
    // unit. The caller must not be loading a unit.
    Status change(Lock& lock, bool press);
    // Gives all memory back behind a closed door. The runtime has no plan afterwards.
    Status vacate(Lock& lock);
    // Gives all memory back for a pause, and takes memory for a resume. With `keeps_places` in both calls,
    // all blocks get the same places again, because graphs use them. Else a new plan is made. On failure of leave() the
    // plan is in force as before, or an empty one that the next step replaces. On failure of come_back() nothing is
    // held.
    Status leave(bool keeps_places, Lock& lock);
    Status come_back(bool keeps_places, Lock& lock);
    // Puts the blocks back where they were, after leave() has failed.
    Status repair(Lock& lock);
    // leave() has got so far that the places have to be taken again.
    bool is_emptied() const { return away_.emptied; }

    // Gives all memory back when the runtime is closed.
    Status give_back(Lock& lock);

    BudgetClaim& claim() { return claim_; }
    // Lets the runtime hold all of its share again, if it was trimmed.
    void use_all() { claim_.trim_to(UINT64_MAX); }
    // Forgets a unit that is gone.
    void forget(uint32_t unit) {
        if (plan_.least_unit == unit) plan_.least_unit = kNone;
        plan_memory_.forget(unit);
    }
    // Forgets where packed weights of a unit stayed, because it has other sources.
    void forget_kept(uint32_t unit) { plan_memory_.forget_kept(unit); }
    template <class IsGone>
    void forget_uses(IsGone is_gone) noexcept {
        watch_.forget(is_gone);
    }
    // The order was replaced by the engine: kinds are learned anew.
    void forget_kinds() noexcept { watch_.kinds().clear(); }

    // The plan that these options would lead to. The order must be known.
    Status try_out(const sh_plan_options& options, PlanResult* out);

private:
    Status behind_closed_door(Lock& lock, const std::function<Status()>& work);
    Status change_plan_again(Lock& lock, bool press);
    Status change_plan(Lock& lock, bool press);
    Status empty(Lock& lock);
    Status take_places(Lock& lock);
    Status plan_with_order(Lock& lock, bool press);
    Status get_loader_ready(bool streams);

    Gate& gate_;
    BudgetShare& share_;
    ModelMemory& memory_;
    Movers& movers_;
    StepOrder& step_order_;
    PackedPlanner planner_;
    PlanResult plan_;
    PlanMemory plan_memory_;
    StepWatch watch_;
    ChangesWatch changes_;
    BudgetClaim claim_;
    bool exists_ = false;  // plan_ is in force
    bool wanted_ = true;
    uint64_t sources_planned_ = 0;  // Registry::source_changes() of the plan

    // What a pause has taken away.
    struct Away {
        bool planned = false;       // there was a plan
        bool keeps_places = false;  // plan_ is still that plan
        bool wanted = false;
        bool emptied = false;  // loads have ended, and memory may be gone
    };
    Away away_;
};

}  // namespace stagehand::core
