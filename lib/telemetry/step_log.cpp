#include "telemetry/step_log.h"

#include "base/no_throw.h"
#include "telemetry/json_text.h"

namespace stagehand::telemetry {

namespace {

// Lists of blocks are long. Plans that change all the time must not fill a disk with them.
constexpr uint64_t kMostLists = 64;

}  // namespace

// A line is left out if no memory is left for it.
Status StepLog::write(const std::string& runtime, const sh_runtime_stats& before, const sh_runtime_stats& after,
                      const AddPlan& add_plan) noexcept {
    return no_throw([&] { return write_line(runtime, before, after, add_plan); });
}

Status StepLog::write_line(const std::string& runtime, const sh_runtime_stats& before, const sh_runtime_stats& after,
                           const AddPlan& add_plan) {
    if (!file_.is_open()) return Status();
    JsonText line;
    line.begin_object();
    line.add("runtime", runtime);
    line.add("step", after.steps);
    line.add("step_ms", static_cast<double>(after.last_step_ns) / 1e6);
    line.add("acquires", after.acquires - before.acquires);
    line.add("hits", after.hits - before.hits);
    line.add("in_time", after.in_time - before.in_time);
    line.add("misses", after.misses - before.misses);
    line.add("loads", after.loads - before.loads);
    line.add("load_pieces", after.load_pieces - before.load_pieces);
    line.add("bytes_to_device", after.bytes_to_device - before.bytes_to_device);
    line.add("helped_bytes", after.helped_bytes - before.helped_bytes);
    line.add("bytes_to_host", after.bytes_to_host - before.bytes_to_host);
    line.add("write_backs", after.write_backs - before.write_backs);
    line.add("cancelled_loads", after.cancelled_loads - before.cancelled_loads);
    line.add("failed_loads", after.failed_loads - before.failed_loads);
    line.add("stall_count", after.host_waits - before.host_waits);
    line.add("stall_time_ms", static_cast<double>(after.stall_ns - before.stall_ns) / 1e6);
    line.add("remaps", after.remaps - before.remaps);
    line.add("evictions", after.evictions - before.evictions);
    line.add("plans", after.plans);
    line.add("resident_bytes", after.resident_bytes);
    line.add("ring_bytes", after.ring_bytes);
    line.add("held_bytes", after.held_bytes);
    line.add("share_bytes", after.share_bytes);
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
