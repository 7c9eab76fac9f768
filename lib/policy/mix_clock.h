// MixClock: the times of a cycle of steps of several kinds under one plan, by the recurrence (recurrence.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/mix.h"
#include "policy/programme.h"
#include "policy/shape.h"

namespace stagehand::policy {

// The ring's contents and the lead of the copies pass from step to step, so that a step of one kind depends on the
// kind before it. A clock keeps its buffers and serves many plans.
class MixClock {
public:
    MixClock(const Shape& shape, const Mix& mix);

    // Runs the cycle until its length repeats. Returns false if the plan cannot run it.
    bool run(std::span<const UnitPlan> units, uint32_t ring_pages);

    // Means over the cycle, after run().
    double step_ns() const { return cycle_ns_ / static_cast<double>(steps_); }
    uint64_t bytes_per_step() const { return bytes_ / steps_; }
    double kind_ns(uint32_t kind) const { return kind_ns_[kind] / static_cast<double>(kind_steps_[kind]); }

    uint64_t uses_per_cycle() const { return uses_; }

private:
    bool trace(std::span<const UnitPlan> units, uint32_t ring_pages);
    bool trace_visits(std::span<const UnitPlan> units);
    void visit(size_t number);
    void step(std::span<const Use> trace, const StepProgramme& programme);

    const Mix mix_;
    bool one_order_ = true;  // the kinds differ in their times alone
    // What has to run besides the cycle, because a step of any order may come next. Empty if the cycle has all of it.
    std::span<const Use> base_;
    ProgrammeTracer tracer_;
    std::vector<StepProgramme> first_, later_;  // for each visit, of its first step and of its later ones
    std::vector<uint64_t> kind_steps_;          // in a cycle
    uint64_t steps_ = 0, uses_ = 0;             // in a cycle; of the uses those that are simulated
    uint64_t bytes_ = 0;
    double cycle_ns_ = 0;
    std::vector<double> kind_ns_;
    std::vector<double> free_;  // when the pages of all uses so far are free
    double copied_ = 0, returned_ = 0, now_ = 0;
};

// True if all kinds use the same units in the same order.
bool has_one_order(const Mix& mix);

}  // namespace stagehand::policy
