// Evaluator: the cost of a candidate plan by the recurrence. One evaluator serves a whole search and keeps its buffers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "policy/layout.h"
#include "policy/plan.h"
#include "policy/programme.h"
#include "policy/recurrence.h"
#include "policy/shape.h"

namespace stagehand::policy {

// A plan before its layout is known.
struct Candidate {
    std::vector<uint32_t> parts;  // streamed pages of each unit
    uint32_t ring = 0;
    Layout layout = Layout::packed;
};

struct Cost {
    double step_ns = 0;
    uint64_t bytes = 0;
};

class Evaluator {
public:
    // `steps`: the number of steps that each evaluation may simulate.
    Evaluator(const Shape& shape, uint32_t steps);

    // Nothing if the candidate cannot run or exceeds the budget.
    std::optional<Cost> cost(const Candidate& candidate);

    uint64_t evaluations() const { return evaluations_; }
    std::optional<Plan> plan(const Candidate& candidate, uint32_t steps);

private:
    bool place(const Candidate& candidate);

    const Shape& shape_;
    uint32_t steps_;
    uint64_t evaluations_ = 0;
    std::vector<UnitPlan> units_;
    ProgrammeTracer tracer_;
    StepProgramme programme_;
    StepClock clock_;
};

}  // namespace stagehand::policy
