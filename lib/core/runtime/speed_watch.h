// SpeedWatch: has some copies timed as long as the runtime lives, and finds out whether the link or the sources have
// another speed than the plan in force counts with.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "core/plan/plan_terms.h"
#include "core/runtime/budget_share.h"
#include "core/runtime/step_order.h"
#include "policy/time_drift.h"

namespace stagehand::core {

// The speed of the link is that of copies from pinned memory, as this runtime makes them, so a neighbour that shares
// the link counts. A speed that the engine has given is trusted. Sources are compared for units that are streamed. Each
// verdict needs two samples that agree with each other and differ from the plan. The caller holds the runtime's mutex
// in all methods.
class SpeedWatch {
public:
    explicit SpeedWatch(BudgetShare& share, ModelMemory& memory, Movers& movers, StepOrder& step_order)
        : share_(share), memory_(memory), movers_(movers), step_order_(step_order) {}

    // The speed of the link to plan with, in bytes per nanosecond: by the last verdict, else as the device has it. With
    // what other links bring now.
    Status link(double* bytes_per_ns) const;
    void step_begins(const PlanResult& plan);
    // Reads samples that are there. May lack memory.
    void look();
    // The link or the sources have another speed than the plan in force counts with.
    bool differs() const { return link_differs_ || sources_differ_ || beside_differs_; }
    // Plans for other speeds alone come at intervals, which grow while such plans follow each other.
    bool may_plan() const { return steps_ >= next_plan_; }
    uint64_t stable_for() const { return steps_ - differs_since_; }  // steps, if it differs
    uint64_t verdict() const { return verdict_; }                    // another number for other speeds
    // Another plan is in force, and counts with this speed of the link. `wanted`: other speeds were the reason.
    void plan_changed(double link_bytes_per_ns, bool wanted) noexcept;

private:
    void look_at_link();
    void look_beside();
    void look_at_sources();
    void note_verdict();
    void find_streamed_times(std::vector<uint64_t>* out);

    BudgetShare& share_;
    ModelMemory& memory_;
    Movers& movers_;
    StepOrder& step_order_;
    policy::TimeDrift link_samples_, source_drift_;
    std::vector<uint64_t> planned_, times_;  // of the copy of each streamed unit, in nanoseconds
    std::vector<double> source_ns_;          // of a byte of each unit
    double planned_link_ = 0;                // own, in bytes per nanosecond; 0: there was no plan
    double planned_beside_ = 0;              // and that of other links
    double link_ = 0;                        // by the last verdict; 0: as the device has it
    double link_before_ = 0;                 // the last sample, if it differs from the plan
    uint64_t steps_ = 0, differs_since_ = 0, verdict_ = 0, next_sources_ = 0;
    uint64_t last_plan_ = 0, next_plan_ = 0, interval_ = 0;  // of plans for other speeds
    bool link_due_ = false;                                  // a sample is to be read
    bool link_differs_ = false, sources_differ_ = false, beside_differs_ = false;
    uint64_t beside_apart_ = 0;  // steps for which other links have brought more or less than planned
};

}  // namespace stagehand::core
