// StepCount: counts steps, and launches that count as a step, in the statistics, the trace and the log.
#pragma once

#include <cstdint>

#include <optional>
#include <vector>

#include <stagehand/telemetry.h>

#include "base/status.h"
#include "core/runtime/budget_share.h"
#include "core/runtime/gate.h"
#include "core/runtime/plan_figures.h"
#include "telemetry/step_log.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class StepCount {
public:
    // A step that has begun.
    struct Span {
        uint64_t began_ns = 0, ended_ns = 0;
        sh_runtime_stats before = {};
        std::optional<std::vector<telemetry::SetReading>> sets = {};  // before; nothing: the step has no line
    };

    StepCount(Gate& gate, BudgetShare& share, const PlanFigures& figures)
        : gate_(gate), share_(share), figures_(figures) {}

    Status start_log(const char* path) { return log_.start(path); }
    Status stop_log() { return log_.stop(); }
    // Tells the arbiter that a step begins. The arbiter divides memory by how often each runtime steps.
    void announce();
    Span begin() const;
    // Counts the step when it has ended on the host.
    void end(Span* span);
    // Writes the step to the trace and the log, after all that it leads to has been counted.
    Status tell(const Span& span);

private:
    Gate& gate_;
    BudgetShare& share_;
    const PlanFigures& figures_;
    telemetry::StepLog log_;
};

}  // namespace stagehand::core
