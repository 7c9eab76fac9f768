// PlanInForce: the plan that is in force in a runtime, and the changes of that plan.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <stagehand/runtime.h>
#include <stagehand/streaming.h>

#include "base/status.h"
#include "core/plan/planner.h"
#include "core/runtime/budget_refusal.h"
#include "core/runtime/parts.h"
#include "core/runtime/protections.h"
#include "core/runtime/step_watch.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class PlanInForce {
public:
    PlanInForce(Parts& parts, const Protections& protections, const sh_runtime_options& options);

    bool exists() const { return exists_; }
    const Planner::Result& result() const { return plan_; }  // all 0 if there is no plan
    // A new plan: blocks, sources, order or protections changed, or the engine asked.
    bool is_wanted() const {
        return wanted_ || parts_.registry.source_changes() != sources_planned_ || changes_differ_;
    }
    void want() { wanted_ = true; }
    bool is_due() const;  // a new plan, at the next edge of a step
    // Some steps are measured. look_at_times() wants a new plan if the engine computes, or its blocks are copied, for
    // other times than planned, and if a new plan is worth the change. What the engine gave is trusted.
    StepWatch& watch() { return watch_; }
    const StepWatch& watch() const { return watch_; }
    void look_at_times();
    // Wants a new plan if the engine changes more or fewer blocks in each step than the plan counts on.
    void look_at_changes();

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

    // trim_to() limits what the runtime holds until it is used again. use_all() lets it hold all of its share again.
    void trim_to(uint64_t pages) { trimmed_to_ = pages; }
    void use_all() { trimmed_to_ = UINT64_MAX; }
    // Forgets a unit that is gone.
    void forget(uint32_t unit);
    // Forgets where packed weights of a unit stayed, because it has other sources.
    void forget_kept(uint32_t unit);
    template <class IsGone>
    void forget_uses(IsGone is_gone) noexcept {
        watch_.forget(is_gone);
        planner_.set_mix({});
    }
    // The order was replaced by the engine: kinds are learned anew.
    void forget_kinds() noexcept {
        watch_.kinds().clear();
        planner_.set_mix({});
    }

    // What the runtime needs of the device.
    Needs needs();
    // Tells the arbiter how many of the pages that the runtime holds now are protected.
    void tell_kept();
    // For when fewer pages are protected than before. If host memory is too short to compute the number, the
    // arbiter keeps the old number until a plan is settled.
    void tell_less_kept() noexcept;

    // The plan that these options would lead to. The order must be known.
    Status try_out(const sh_plan_options& options, Planner::Result* out);

private:
    Status behind_closed_door(Lock& lock, const std::function<Status()>& work);
    Status change_plan_again(Lock& lock, bool press);
    Status change_plan(Lock& lock, bool press);
    Status empty(Lock& lock);
    Status take_places(Lock& lock);
    Needs needs_with_curve(const Planner::Limits& limits, uint32_t* out_unit = nullptr);
    void state_needs();
    Status plan_with_order(Lock& lock, bool press);
    BudgetRefusal refusal(const Planner::Limits& limits) const;
    Status ask_for_share(const Needs& needs, bool press, uint64_t* out_pages, Lock& lock);
    Status quiesce(Lock& lock);
    Status get_loader_ready(bool streams);
    std::vector<bool> changing_units() const;
    bool counts_on_changes(size_t unit) const { return unit < changes_planned_.size() && changes_planned_[unit]; }
    Status flush_dirty(Lock& lock);
    Status put_into_force(const Planner::Result& result, Lock& lock);
    Planner::Limits limits() const;
    Holding holding() noexcept;
    std::vector<policy::Part> parts_to_give_up() const;
    uint64_t kept_pages();
    void read_times();
    void measure_times_if_missing();

    Parts& parts_;
    const Protections& protections_;
    const uint32_t max_held_;
    const uint64_t unordered_pages_;  // as the engine asked for; 0: automatic
    const uint64_t share_wait_ns_;
    Planner planner_;
    Planner::Result plan_;
    StepWatch watch_;
    bool exists_ = false;  // plan_ is in force
    bool wanted_ = true;
    uint64_t sources_planned_ = 0;       // Registry::source_changes() of the plan
    std::vector<bool> changes_planned_;  // for each unit, whether the plan counts on changes in each step
    bool changes_differ_ = false;        // the engine changes much more or less
    // Steps until changes are looked at again: in the whole, and left.
    uint32_t changes_interval_ = 0, changes_wait_ = 0;
    bool was_measured_ = false;  // compute times have been measured once, or are being measured
    uint64_t trimmed_to_ = UINT64_MAX;

    // What a pause has taken away.
    struct Away {
        bool planned = false;       // there was a plan
        bool keeps_places = false;  // plan_ is still that plan
        bool wanted = false;
        bool emptied = false;  // loads have ended, and memory may be gone
        std::vector<Place> places;
        uint32_t ring_pages = 0;
        uint64_t unordered_pages = 0;
        UnpackPlan unpack;
        std::vector<uint64_t> kept_places;  // see Placement: graphs find packed weights there
    };
    Away away_;
};

}  // namespace stagehand::core
