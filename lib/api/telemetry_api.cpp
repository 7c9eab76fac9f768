// Counters, trace, one line a step.
#include "api/guard.h"
#include "api/scopes.h"
#include "api/spillers.h"
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

sh_status sh_trace_start(const char* path, sh_scope** out_scope) {
    return guarded([&] {
        if (!path) return Status(SH_ERROR_INVALID_ARGUMENT, "path is NULL");
        if (!out_scope) return Status(SH_ERROR_INVALID_ARGUMENT, "out_scope is NULL");
        return open_scope(out_scope, telemetry::trace_stop, [&] { return telemetry::trace_start(path); });
    });
}

sh_status sh_telemetry_start(sh_runtime* runtime, sh_spiller* spiller, const char* path, sh_scope** out_scope) {
    return guarded([&] {
        if (!path) return Status(SH_ERROR_INVALID_ARGUMENT, "path is NULL");
        if (runtime && spiller)
            return Status(SH_ERROR_INVALID_ARGUMENT, "runtime and spiller are given: one of them has to be NULL");
        if (spiller) {
            LockedSpiller at;
            SH_TRY(find_spiller(spiller, &at));
            const auto end = [spiller] {
                LockedSpiller in;
                const Status found = find_spiller(spiller, &in);
                return found.ok() ? in.spiller->stop_telemetry() : unless_gone(found);
            };
            return open_scope(out_scope, end, [&] { return at.spiller->start_telemetry(path); });
        }
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        const auto end = [](LockedRuntime& in) { return in.runtime->step_count().stop_log(); };
        return open_scope(out_scope, in_runtime(runtime, end),
                          [&] { return at.runtime->step_count().start_log(path); });
    });
}

}  // extern "C"
