// StepLog: writes one line of JSON for each step of a runtime.
#pragma once

#include <functional>
#include <string>

#include <stagehand/telemetry.h>

#include "base/status.h"
#include "telemetry/json_text.h"
#include "telemetry/line_file.h"

namespace stagehand::telemetry {

// Guarded by the runtime's mutex.
class StepLog {
public:
    Status start(const char* path) {
        SH_TRY(file_.start(path));
        written_plan_ = 0;
        lists_ = 0;
        return Status();
    }
    Status stop() { return file_.stop(); }
    bool is_open() const { return file_.is_open(); }
    // Adds the members of the step that no counter of the runtime tells.
    using AddMore = std::function<void(JsonText&)>;
    // Adds the members of the plan in force, with or without the lists of blocks and uses.
    using AddPlan = std::function<void(JsonText&, bool lists)>;
    // Writes the changes between two readings of the counters, and the sizes of the second reading. The first line of a
    // file, and the first line with a new plan, also describe the plan. Does nothing if no file is open.
    Status write(const std::string& runtime, const sh_runtime_stats& before, const sh_runtime_stats& after,
                 const AddMore& add_more, const AddPlan& add_plan) noexcept;

private:
    Status write_line(const std::string& runtime, const sh_runtime_stats& before, const sh_runtime_stats& after,
                      const AddMore& add_more, const AddPlan& add_plan);

    LineFile file_;
    uint64_t written_plan_ = 0;  // the number of the plan that the file describes; 0: none
    uint64_t lists_ = 0;         // the lists that the file holds
};

}  // namespace stagehand::telemetry
