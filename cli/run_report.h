// What a run has measured, as a table and as JSON.
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
    double load_ms = 0;              // of the step before the timed ones, which loads what stays
    std::uint64_t bytes_copied = 0;  // in all timed steps
    std::vector<StepMeasure> steps;
    bool verify = false;
    std::uint64_t verified_blocks = 0;
    std::uint64_t mismatched_blocks = 0;
    std::string first_mismatch;
    int signal = 0;  // that ended the run early; 0: none

    // Medians of the steps but the first, which begins with a full ring; of the only step if there is one.
    double step_ms() const;
    double stall_ms() const;
    // The mean: a load may be counted in the step before the one that uses it.
    std::uint64_t bytes_per_step() const;
    // max(compute, (W - M) / copy speed).
    double bound_ms() const;
    std::uint64_t hits() const;
    std::uint64_t in_time() const;
    std::uint64_t misses() const;
};

std::string json_text(const RunReport& report);
std::string table_text(const RunReport& report, const Terminal& terminal);

}  // namespace stagehand::cli
