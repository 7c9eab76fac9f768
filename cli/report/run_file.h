// Telemetry of a runtime, as a report reads it: one line for each step (docs/telemetry.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "block_table.h"
#include "median.h"

namespace stagehand::cli {

struct LoggedStep {
    std::uint64_t step = 0;
    double ms = 0;
    double stall_ms = 0;
    std::uint64_t cancelled_loads = 0;
    std::uint64_t failed_loads = 0;
    std::uint64_t evictions = 0;
    std::uint64_t held_bytes = 0;
};

struct LoggedBlock {
    std::string name;
    std::uint64_t bytes = 0;
    std::uint64_t resident_bytes = 0;
    std::uint64_t packed = 1;  // blocks of the engine
    bool unordered = false;
};

struct LoggedPlan {
    std::string device;
    std::uint64_t granularity_bytes = 0;
    std::uint64_t page_bytes = 0;
    std::uint64_t budget_bytes = 0;  // of the device
    std::uint64_t share_bytes = 0;   // of this runtime
    std::uint64_t link_bytes_per_second = 0;
    std::uint64_t model_bytes = 0;
    std::uint64_t resident_bytes = 0;
    std::uint64_t ring_bytes = 0;
    std::uint64_t unordered_bytes = 0;
    std::uint64_t bytes_per_step = 0;
    std::uint64_t smallest_budget_bytes = 0;
    std::string smallest_budget_block;
    std::uint64_t orders = 0;
    double step_ms = 0;
    double bound_ms = 0;
    double compute_ms = 0;
    std::vector<LoggedBlock> blocks;  // empty: the line does not list them
    std::vector<StepUse> uses;
};

// A set over all steps.
struct LoggedSet {
    std::string name;
    std::uint64_t members = 0;
    std::uint64_t slots = 0;  // in the last step
    std::uint64_t uses = 0;
    std::uint64_t hits = 0;
    std::uint64_t evictions = 0;
    std::vector<std::uint64_t> group_uses, group_hits;  // may be absent
};

struct RunFile {
    std::string path;
    std::string label;    // for people: the file's name
    std::string runtime;  // its name
    std::vector<LoggedStep> steps;
    std::vector<LoggedSet> sets;
    std::optional<LoggedPlan> plan;  // the last one
    std::uint64_t plans = 0;         // described plans
    bool cut = false;                // the last line is incomplete, and was left out
};

// Throws CommandError, which names the file and the line. An incomplete last line is the usual end of a process that
// was killed, and is no error.
RunFile read_run_file(const std::string& path);

// Without the first step if there are several, because it begins in another state than the others.
std::vector<double> later_steps(const RunFile& run, double LoggedStep::*member);

}  // namespace stagehand::cli
