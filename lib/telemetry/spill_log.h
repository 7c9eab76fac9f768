// SpillLog: writes one line of JSON for each step of a spiller.
#pragma once

#include <stagehand/spill.h>

#include "base/status.h"
#include "telemetry/line_file.h"

namespace stagehand::telemetry {

// The mutex of its spiller guards it.
class SpillLog {
public:
    Status start(const char* path) { return file_.start(path); }
    Status stop() { return file_.stop(); }
    // Writes the changes between two readings of the counters, and the sizes of the second reading. Does nothing if no
    // file is open.
    Status write(uint64_t step, const sh_spiller_stats& before, const sh_spiller_stats& after) noexcept;

private:
    LineFile file_;
};

}  // namespace stagehand::telemetry
