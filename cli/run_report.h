// The measurements of a run, as a table and as JSON.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <stagehand/stagehand.h>

#include "expert_report.h"
#include "options.h"
#include "terminal.h"
#include "units.h"

namespace stagehand::cli {

// One timed step.
struct StepMeasure {
    double ms = 0;
    double stall_ms = 0;
    std::uint64_t hits = 0;
    std::uint64_t in_time = 0;  // of the hits
    std::uint64_t misses = 0;
};

struct RunReport {
    std::string model;
    std::string device;
    Order order = Order::forward;
    double compute_ms = 0;
    double measured_bytes_per_second = 0;  // to the device, in copies before the steps
    sh_plan_info plan = sh_sized<sh_plan_info>();
    std::uint64_t model_bytes = 0;  // W
    std::uint64_t budget_bytes = 0;
    std::uint64_t peak_device_bytes = 0;
    std::uint64_t blocks = 0;
    double load_ms = 0;              // of the step before the timed steps, which loads the resident parts
    std::uint64_t bytes_copied = 0;  // in all timed steps
    std::uint64_t helped_bytes = 0;  // the part of them that helpers brought
    std::vector<StepMeasure> steps;
    bool verify = false;
    std::uint64_t verified_blocks = 0;
    std::uint64_t mismatched_blocks = 0;
    std::string first_mismatch;
    std::optional<ExpertReport> experts;  // with --experts
    int signal = 0;                       // the signal that ended the run early; 0: none

    // Medians of the steps without the first, which begins with a full ring. With one step, the value of that step.
    double step_ms() const { return median_of(&StepMeasure::ms); }
    double stall_ms() const { return median_of(&StepMeasure::stall_ms); }
    // W - M.
    std::uint64_t excess_bytes() const { return model_bytes - std::min(model_bytes, plan.budget_bytes); }
    // The mean, because a load may be counted in the step before the step that uses it.
    std::uint64_t bytes_per_step() const { return steps.empty() ? 0 : bytes_copied / steps.size(); }
    std::uint64_t helped_bytes_per_step() const { return steps.empty() ? 0 : helped_bytes / steps.size(); }
    // What the steps themselves show of the speed of the link: what they copied, in the time that they took. In steps
    // that repeat, that is never less than W - M, because no plan copies less. 0 if nothing was copied, or if a signal
    // came after the first step: that step begins with a full ring, which nothing has filled again.
    double steps_bytes_per_second() const;
    // The larger of both speeds. Copies before the steps only show how fast the link was then.
    double copy_bytes_per_second() const;
    // max(compute, (W - M) / copy speed). No step is faster on a link of that speed.
    double bound_ms() const;
    // Whether the link was faster in the steps than in the copies before them.
    bool faster_in_steps() const { return is_below(measured_bytes_per_second, copy_bytes_per_second()); }
    // Over all steps.
    std::uint64_t sum(std::uint64_t StepMeasure::*member) const;

private:
    double median_of(double StepMeasure::*member) const;
};

std::string json_text(const RunReport& report);
std::string table_text(const RunReport& report, const Terminal& terminal);

}  // namespace stagehand::cli
