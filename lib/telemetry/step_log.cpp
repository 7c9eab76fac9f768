#include "telemetry/step_log.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/no_throw.h"
#include "telemetry/json_text.h"

namespace stagehand::telemetry {

StepLog::~StepLog() {
    if (file_) std::fclose(file_);
}

Status StepLog::open(const char* path) {
    std::string next = path ? path : "";  // may throw, so it comes before any change
    std::FILE* file = nullptr;
    if (path) {
        file = std::fopen(path, "we");
        if (!file) return Status(SH_ERROR_IO, std::string("telemetry ") + path + ": " + std::strerror(errno));
    }
    const bool failed = file_ && std::fclose(file_) != 0;
    const std::string ended = std::exchange(path_, std::move(next));
    file_ = file;
    return failed ? Status(SH_ERROR_IO, "telemetry " + ended + ": could not be written completely") : Status();
}

// A line is left out if no memory is left for it.
Status StepLog::write(const std::string& runtime, const sh_runtime_stats& before,
                      const sh_runtime_stats& after) noexcept {
    return no_throw([&] { return write_line(runtime, before, after); });
}

Status StepLog::write_line(const std::string& runtime, const sh_runtime_stats& before, const sh_runtime_stats& after) {
    if (!file_) return Status();
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
    const std::string text = line.end_object().text() + "\n";
    // Each line is flushed, so that a reader of the file sees whole steps, also after a crash.
    if (std::fputs(text.c_str(), file_) < 0 || std::fflush(file_) != 0)
        return Status(SH_ERROR_IO, "telemetry " + path_ + ": " + std::strerror(errno));
    return Status();
}

}  // namespace stagehand::telemetry
