// PlanFigures: a plan and its kinds of step in figures, for engines and for telemetry.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <stagehand/runtime.h>
#include <stagehand/streaming.h>
#include <stagehand/telemetry.h>

#include "core/runtime/budget_share.h"
#include "core/runtime/plan_in_force.h"
#include "telemetry/json_text.h"
#include "telemetry/set_reading.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class PlanFigures {
public:
    PlanFigures(Gate& gate, BudgetShare& share, ModelMemory& memory, StepOrder& step_order, const PlanInForce& plan,
                const sh_runtime_options& options)
        : gate_(gate),
          share_(share),
          memory_(memory),
          step_order_(step_order),
          plan_(plan),
          max_held_(std::max(1u, options.max_held)) {}

    // Describes a plan for this runtime.
    void describe(const PlanResult& result, sh_plan_info* out) const;
    // Describes the kinds of step that are known, as many as there is room for. Returns their number.
    uint64_t list_kinds(std::span<sh_kind_info* const> out) const;
    // Adds the members that docs/telemetry.md lists for a plan. `lists`: also the blocks, and the order of their use.
    void tell(telemetry::JsonText& out, bool lists) const;
    // Fills in the counters, and the sizes, which are computed at each call.
    void stats(sh_runtime_stats* out) const;
    std::vector<telemetry::SetReading> sets() const { return step_order_.unordered.sets().readings(); }

private:
    Gate& gate_;
    BudgetShare& share_;
    ModelMemory& memory_;
    StepOrder& step_order_;
    const PlanInForce& plan_;
    const uint32_t max_held_;
};

}  // namespace stagehand::core
