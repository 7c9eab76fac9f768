// StepWatch: has some steps measured as long as the runtime lives, and finds out whether a plan for the orders, times
// and speeds that were seen is worth the change.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "core/plan/kinds.h"
#include "core/plan/packed_planner.h"
#include "core/runtime/budget_share.h"
#include "core/runtime/speed_watch.h"
#include "core/runtime/step_order.h"
#include "policy/time_drift.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class StepWatch {
public:
    explicit StepWatch(Gate& gate, BudgetShare& share, ModelMemory& memory, Movers& movers, StepOrder& step_order)
        : gate_(gate),
          share_(share),
          memory_(memory),
          step_order_(step_order),
          speeds_(share, memory, movers, step_order) {}

    // The engine has given the times of the order, or not. Times that it gave are not measured.
    void trust_times(bool given) { trusted_ = given; }
    Kinds& kinds() { return kinds_; }
    const Kinds& kinds() const { return kinds_; }
    const SpeedWatch& speeds() const { return speeds_; }

    void step_begins(const PlanResult& plan);
    // The kind of the step is known by now, as far as it can be.
    void step_ends();
    // Has the next step measured whole if nothing is known of the times.
    void measure_if_missing();
    // Writes the times of that step into the order.
    void read_first_times();
    // Reads a sample whose events are done. Returns true if a plan for other orders, times or speeds is worth its cost.
    // The order must be known, and `plan` in force.
    Status look(PackedPlanner& planner, const PlanLimits& limits, const PlanResult& plan, bool* out_changed);
    // Sets the orders and the times for a plan that takes the place of `plan`.
    void state_order(const PlanResult& plan, uint32_t max_held);
    // Another plan is in force, which counts with this speed of the link. It took so long to put it into force.
    void plan_changed(double link_bytes_per_ns, uint64_t took_ns);
    // Forgets units that are gone.
    template <class IsGone>
    void forget(IsGone is_gone) noexcept {
        kinds_.forget(is_gone);
        planned_.clear();
        offer_ = {};
    }
    // Why the last look() wanted a plan.
    const char* reason() const { return reason_; }

private:
    // What a plan for other times, or for other speeds, would bring.
    struct Offer {
        bool made = false;
        OrderTimes times;
        uint64_t verdict = 0;            // of the speeds
        double now_ns = 0, then_ns = 0;  // the mean length of a step with the present plan, and with the new one
        double cost_ns = 0;

        double gain_ns() const { return now_ns - then_ns; }
    };

    bool read_sample();
    Status make_offer(PackedPlanner& planner, const PlanLimits& limits, const PlanResult& plan, OrderTimes times);
    bool is_worth_it(uint64_t stable_for) const;

    Gate& gate_;
    BudgetShare& share_;
    ModelMemory& memory_;
    StepOrder& step_order_;
    Kinds kinds_;
    SpeedWatch speeds_;
    policy::TimeDrift drift_;  // says which steps are measured, of kinds without a name
    OrderTimes planned_;       // that the plan in force was made for, or the one that is made
    Offer offer_;              // the last one
    uint32_t offers_ = 0;      // for the plan in force
    uint64_t steps_ = 0, next_offer_ = 0;
    uint32_t sample_kind_ = kNone, measured_kind_ = kNone;
    uint64_t change_ns_ = 0;
    static constexpr const char* kSpeeds = "plan: other speeds of copies";
    static constexpr const char* kAsked = "plan";  // blocks, budget or order changed, or the engine asked
    const char* reason_ = kAsked;
    bool trusted_ = false;
    bool was_measured_ = false;  // a whole step
    bool sampling_ = false;      // the step that is under way
};

}  // namespace stagehand::core
