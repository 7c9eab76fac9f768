// The copies that a plan makes in a step, with their fences. The recurrence runs on them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/pieces.h"
#include "policy/plan.h"
#include "policy/ring_owners.h"
#include "policy/shape.h"

namespace stagehand::policy {

struct Copy {
    double ns = 0;
    // The copy starts when the compute this many uses back has ended, and all write-backs that began by then. 0: at
    // once.
    uint32_t fence_back = 0;
};

struct StepProgramme {
    std::vector<uint32_t> first_copy;  // use j makes copies [first_copy[j], first_copy[j + 1])
    std::vector<Copy> copies;
    // For each use, how long the write-back takes that begins when its compute has ended. Empty if there are none.
    std::vector<double> back_ns;
    uint64_t bytes = 0;
};

// Follows the owners of the ring's pages through the trace. A tracer keeps its buffers and serves many plans.
class ProgrammeTracer {
public:
    explicit ProgrammeTracer(const Shape& shape) : shape_(&shape), last_use_(shape.pages.size()) {}

    // Finds the copies of a step after the first one. All of these steps are alike, because after one step each page
    // belongs to the last unit of the trace that lies on it. With `cold`, also finds the copies of the first step, on
    // an empty ring. Returns false if a load would have to wait for a use that is held at the same time, which means
    // that two units held together share a page.
    bool trace(std::span<const UnitPlan> units, uint32_t ring_pages, StepProgramme& steady,
               StepProgramme* cold = nullptr);

private:
    bool trace_step(std::span<const UnitPlan> units, uint64_t uses_before, StepProgramme& step);
    void note_owners(std::span<const UnitPlan> units, uint32_t ring_pages);
    void list_write_backs(std::span<const UnitPlan> units, StepProgramme& step);
    bool load(uint32_t unit, const UnitPlan& plan, uint64_t use, StepProgramme& step);

    const Shape* shape_;
    RingOwners owners_;
    std::vector<uint64_t> last_use_;  // for each unit, its last use so far, counted from 1; 0: none
    std::vector<PageRun> runs_;
    std::vector<bool> written_;  // for each unit, whether its last use in the step was met
};

}  // namespace stagehand::policy
