// Counters, trace, one line a step.
#include "api/guard.h"
#include "telemetry/trace.h"

using namespace stagehand;
using namespace stagehand::api;

extern "C" {

sh_status sh_runtime_get_stats(sh_runtime* runtime, sh_runtime_stats* out_stats) {
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return fill_struct(out_stats, "out_stats", [&](sh_runtime_stats* stats) {
            at.runtime->figures().stats(stats);
            return Status();
        });
    });
}

sh_status sh_trace_start(const char* path) {
    return guarded([&] {
        if (!path) return Status(SH_ERROR_INVALID_ARGUMENT, "path is NULL");
        return telemetry::trace_start(path);
    });
}

sh_status sh_trace_stop(void) {
    return guarded([] { return telemetry::trace_stop(); });
}

sh_status sh_telemetry_open(sh_runtime* runtime, const char* path) {
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->step_count().open_log(path);
    });
}

}  // extern "C"
