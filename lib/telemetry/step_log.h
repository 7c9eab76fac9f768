// StepLog: writes one line of JSON for each step of a runtime.
#pragma once

#include <string>

#include <stagehand/telemetry.h>

#include "base/status.h"
#include "telemetry/line_file.h"

namespace stagehand::telemetry {

// Guarded by the runtime's mutex.
class StepLog {
public:
    // Begins a file. NULL ends the current file.
    Status open(const char* path) { return file_.open(path); }
    bool is_open() const { return file_.is_open(); }
    // Writes the changes between two readings of the counters, and the sizes of the second reading. Does nothing if no
    // file is open.
    Status write(const std::string& runtime, const sh_runtime_stats& before, const sh_runtime_stats& after) noexcept;

private:
    Status write_line(const std::string& runtime, const sh_runtime_stats& before, const sh_runtime_stats& after);

    LineFile file_;
};

}  // namespace stagehand::telemetry
