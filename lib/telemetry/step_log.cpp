#include "telemetry/step_log.h"

#include "base/no_throw.h"
#include "telemetry/figures.h"
#include "telemetry/json_text.h"

namespace stagehand::telemetry {

namespace {

// Lists of blocks are long. Plans that change all the time must not fill a disk with them.
constexpr uint64_t kMostLists = 64;

}  // namespace

// A line is left out if no memory is left for it.
Status StepLog::write(const std::string& runtime, const sh_runtime_stats& before, const sh_runtime_stats& after,
                      const AddMore& add_more, const AddPlan& add_plan) noexcept {
    return no_throw([&] { return write_line(runtime, before, after, add_more, add_plan); });
}

Status StepLog::write_line(const std::string& runtime, const sh_runtime_stats& before, const sh_runtime_stats& after,
                           const AddMore& add_more, const AddPlan& add_plan) {
    if (!file_.is_open()) return Status();
    JsonText line;
    line.begin_object();
    line.add("runtime", runtime);
    line.add("step", after.steps);
    line.add("step_ms", static_cast<double>(after.last_step_ns) / 1e6);
    line.add("stall_count", after.host_waits - before.host_waits);
    line.add("stall_time_ms", static_cast<double>(after.stall_ns - before.stall_ns) / 1e6);
    for (const auto& [name, value, in_line] : kRuntimeFigures)
        if (in_line != InLine::no) line.add(name, after.*value - (in_line == InLine::change ? before.*value : 0));
    add_more(line);
    const bool tells_plan = after.plans != written_plan_ && after.plans > 0;
    const bool lists = tells_plan && lists_ < kMostLists;
    if (tells_plan) {
        line.begin_object("plan");
        add_plan(line, lists);
        line.end_object();
    }
    SH_TRY(file_.write(line.end_object().text()));
    if (tells_plan) written_plan_ = after.plans;
    lists_ += lists;
    return Status();
}

}  // namespace stagehand::telemetry
