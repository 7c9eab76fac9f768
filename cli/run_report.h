// The measurements of a run, as a table and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stagehand/stagehand.h>

#include "options.h"
#include "terminal.h"

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
    double copy_bytes_per_second = 0;  // to the device, measured in this run
    sh_plan_info plan = SH_PLAN_INFO_INIT;
    std::uint64_t model_bytes = 0;  // W
    std::uint64_t budget_bytes = 0;
    std::uint64_t peak_device_bytes = 0;
    std::uint64_t blocks = 0;
    double load_ms = 0;              // of the step before the timed steps, which loads the resident parts
    std::uint64_t bytes_copied = 0;  // in all timed steps
    std::vector<StepMeasure> steps;
    bool verify = false;
    std::uint64_t verified_blocks = 0;
    std::uint64_t mismatched_blocks = 0;
    std::string first_mismatch;
    int signal = 0;  // the signal that ended the run early; 0: none

    // Medians of the steps without the first, which begins with a full ring. With one step, the value of that step.
    double step_ms() const;
    double stall_ms() const;
    // The mean, because a load may be counted in the step before the step that uses it.
    std::uint64_t bytes_per_step() const;
    // max(compute, (W - M) / copy speed). No step is faster on a link of that speed; but the speed is a measurement.
    double bound_ms() const;
    // Whether the steps were faster than bound_ms(): the link then was faster than its measurement.
    bool bound_beaten() const;
    std::uint64_t hits() const;
    std::uint64_t in_time() const;
    std::uint64_t misses() const;
};

std::string json_text(const RunReport& report);
std::string table_text(const RunReport& report, const Terminal& terminal);

}  // namespace stagehand::cli
