// The options of the subcommands, as parsed from the command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/quantity.h"

namespace stagehand::cli {

enum class Order { forward, forward_backward };

// "forward" or "forward-backward".
const char* to_string(Order order);

struct DevicesOptions {
    bool json = false;
};

// The options that `plan` and `run` share.
struct ModelOptions {
    std::string model;
    std::optional<model::Quantity> budget;  // nothing: automatic, from what the device has free
    std::string budget_text;                // as given
    std::string device = "auto";
    std::string backend_options;  // "key=value;key=value"
    Order order = Order::forward;
    double compute_ms = 0;               // of a step, all uses together
    std::uint64_t max_block_bytes = 0;   // 0: by the budget
    std::uint64_t max_header_bytes = 0;  // 0: the reader's own limit
    std::string experts;                 // the trace of the experts that tokens used; empty: none
    std::vector<std::string> unordered;  // patterns of names of blocks that are not used in every step
    bool json = false;
};

// The options of `plan --training`. Zero: not given.
struct TrainingOptions {
    std::uint64_t layers = 0;
    std::uint64_t hidden = 0;
    std::uint64_t heads = 0;
    std::uint64_t kv_heads = 0;
    std::uint64_t intermediate = 0;
    bool gated = false;
    std::uint64_t vocabulary = 0;
    std::uint64_t sequence = 0;
    std::uint64_t batch = 1;
    std::uint64_t element_bytes = 2;
    std::string dtype = "bf16";
    std::uint64_t peak_bytes = 0;
    double slowdown = 0;                 // times the plain step
    double flops = 0;                    // operations per second
    double step_ms = 0;                  // of a plain step
    std::uint64_t memory_bandwidth = 0;  // bytes per second
};

// A kind of step: --kinds.
struct KindOption {
    std::string name;
    double compute_ms = 0;
    std::uint32_t steps = 1;  // in a row
};

struct PlanOptions : ModelOptions {
    bool is_training = false;
    TrainingOptions training;
    std::uint64_t bandwidth = 0;    // bytes per second; 0: the device's, measured
    std::vector<KindOption> kinds;  // that come in turn; empty: all steps are of one kind
    bool curve = false;
    std::string svg;  // where to put the picture; empty: nowhere
    bool all_blocks = false;
};

struct RunOptions : ModelOptions {
    std::uint64_t steps = 10;
    std::string helpers;
    bool verify = false;
    bool quiet = false;
    std::string trace;
    std::string telemetry;
    std::string report;
};

// Of `pack` and of `unpack`.
struct PackOptions {
    std::string model;
    std::string output;
    std::uint32_t threads = 0;  // 0: as many as there are processors
    bool verify = false;
    bool all_tensors = false;
    bool quiet = false;
    bool json = false;
};

struct ReportOptions {
    std::vector<std::string> files;  // telemetry, each with or without its trace behind it
    std::string output;
    std::string label;  // of the first run; empty: the file's name
    bool quiet = false;
};

struct BenchOptions {
    std::string device = "auto";
    std::string backend_options;    // "key=value;key=value"
    std::vector<std::string> only;  // groups; empty: all
    std::uint64_t bytes = 0;        // the bytes that each group copies; 0: by the device
    std::string scratch;            // folder of the scratch file; empty: $TMPDIR, or /tmp
    bool quick = false;
    bool json = false;
};

struct TopOptions {
    std::string process;  // a process id or the path of a socket; empty: the only process that answers
    double interval_seconds = 1;
    bool once = false;
    bool json = false;
};

// Of `release` and of `resume`.
struct OccupancyOptions {
    bool resumes = false;
    std::string process = {};            // a process id or the path of a socket; empty: the only process that answers
    std::string socket = {};             // instead of a process
    std::string device = {};             // of the process; empty: its only one
    std::vector<std::string> tags = {};  // empty: all
    bool drop = false;
    double wait_seconds = 5;
    bool json = false;
};

// The names that BenchOptions::only may hold, in the order of measurement.
const std::vector<std::string>& bench_groups();

// Each function runs a subcommand and returns the exit code of the process. They throw CommandError, ModelError and
// QuantityError.
int devices_command(const DevicesOptions& options);
int plan_command(const PlanOptions& options);
int training_command(const PlanOptions& options);
int run_command(const RunOptions& options);
int pack_command(const PackOptions& options);
int unpack_command(const PackOptions& options);
int report_command(const ReportOptions& options);
int bench_command(const BenchOptions& options);
int top_command(const TopOptions& options);
int occupancy_command(const OccupancyOptions& options);

// Throws CommandError if this command cannot make reports.
void check_reports_are_built();

}  // namespace stagehand::cli
