#include "telemetry/step_log.h"

#include <cerrno>
#include <cstring>

#include "telemetry/json.h"

namespace stagehand::telemetry {

StepLog::~StepLog() {
    if (file_) std::fclose(file_);
}

Status StepLog::open(const char* path) {
    std::FILE* file = nullptr;
    if (path) {
        file = std::fopen(path, "we");
        if (!file) return Status(SH_ERROR_IO, std::string("telemetry ") + path + ": " + std::strerror(errno));
    }
    const bool failed = file_ && std::fclose(file_) != 0;
    const std::string ended = std::exchange(path_, path ? path : "");
    file_ = file;
    return failed ? Status(SH_ERROR_IO, "telemetry " + ended + ": could not be written whole") : Status();
}

Status StepLog::write(const std::string& runtime, const sh_runtime_stats& before, const sh_runtime_stats& after) {
    if (!file_) return Status();
    Json line;
    line["runtime"] = runtime;
    line["step"] = after.steps;
    line["step_ms"] = static_cast<double>(after.last_step_ns) / 1e6;
    line["acquires"] = after.acquires - before.acquires;
    line["hits"] = after.hits - before.hits;
    line["in_time"] = after.in_time - before.in_time;
    line["misses"] = after.misses - before.misses;
    line["loads"] = after.loads - before.loads;
    line["load_pieces"] = after.load_pieces - before.load_pieces;
    line["bytes_to_device"] = after.bytes_to_device - before.bytes_to_device;
    line["bytes_to_host"] = after.bytes_to_host - before.bytes_to_host;
    line["write_backs"] = after.write_backs - before.write_backs;
    line["cancelled_loads"] = after.cancelled_loads - before.cancelled_loads;
    line["failed_loads"] = after.failed_loads - before.failed_loads;
    line["stall_count"] = after.host_waits - before.host_waits;
    line["stall_time_ms"] = static_cast<double>(after.stall_ns - before.stall_ns) / 1e6;
    line["remaps"] = after.remaps - before.remaps;
    line["evictions"] = after.evictions - before.evictions;
    line["plans"] = after.plans;
    line["resident_bytes"] = after.resident_bytes;
    line["ring_bytes"] = after.ring_bytes;
    const std::string text = json_line(line) + "\n";
    // Each line is flushed: whoever follows the file sees whole steps, also after a crash.
    if (std::fputs(text.c_str(), file_) < 0 || std::fflush(file_) != 0)
        return Status(SH_ERROR_IO, "telemetry " + path_ + ": " + std::strerror(errno));
    return Status();
}

}  // namespace stagehand::telemetry
