// A trace of the library (docs/telemetry.md), as a report reads it: one step, and the memory over the whole trace.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/run_file.h"

namespace stagehand::cli {

enum class Lane { load, view, compute, wait, write_back, plan };

const char* to_string(Lane lane);

struct TraceSlice {
    Lane lane = Lane::load;
    std::string name;
    std::uint64_t row = 0;  // slices of one lane that overlap are in different rows
    double begin_ms = 0;    // from the beginning of the step
    double end_ms = 0;
    std::uint64_t bytes = 0;
};

struct TraceMemory {
    double ms = 0;  // from the first event of the trace
    std::uint64_t bytes = 0;
};

struct TraceFile {
    std::string path;
    std::string step;  // name of the step that is shown: the one of median length
    double step_ms = 0;
    double begin_ms = 0;  // of this step, from the first event of the trace
    std::uint64_t steps = 0;
    std::uint64_t left_out = 0;  // slices of this step beyond the limit
    std::vector<TraceSlice> slices;
    std::vector<TraceMemory> memory;
    bool cut = false;  // the trace has no end, because the process was killed
};

// Whether the file begins as a trace of the library.
bool is_trace(const std::string& path);

// What the trace holds about the runtime of `run`. Throws CommandError.
TraceFile read_trace_file(const std::string& path, const RunFile& run);

}  // namespace stagehand::cli
