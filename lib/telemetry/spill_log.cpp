#include "telemetry/spill_log.h"

#include "base/no_throw.h"
#include "telemetry/json_text.h"

namespace stagehand::telemetry {
namespace {

double ms_of(uint64_t ns) { return static_cast<double>(ns) / 1e6; }
double mb_of(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

// A line is left out if no memory is left for it.
Status SpillLog::write(uint64_t step, const sh_spiller_stats& before, const sh_spiller_stats& after) noexcept {
    if (!file_.is_open()) return Status();
    return no_throw([&] {
        const uint64_t saved = after.saved - before.saved, spilled = after.spilled - before.spilled;
        JsonText line;
        line.begin_object();
        line.add("step", step);
        line.add("activations_saved", saved);
        line.add("activations_kept", saved > spilled ? saved - spilled : 0);
        line.add("activations_spilled", spilled);
        line.add("activations_restored", after.restored - before.restored);
        line.add("activations_shared", after.shared - before.shared);
        line.add("spill_bytes", after.spill_bytes - before.spill_bytes);
        line.add("restore_bytes", after.restore_bytes - before.restore_bytes);
        line.add("prefetched", after.prefetched - before.prefetched);
        line.add("stall_time_ms", ms_of(after.stall_ns - before.stall_ns));
        line.add("stall_count", after.stall_count - before.stall_count);
        line.add("pool_hits", after.pool_hits - before.pool_hits);
        line.add("pool_misses", after.pool_misses - before.pool_misses);
        line.add("pool_bytes", after.pool_bytes);
        line.add("failed_spills", after.failed_spills - before.failed_spills);
        line.add("vram_peak_mb", mb_of(after.used_peak_bytes));
        return file_.write(line.end_object().text());
    });
}

}  // namespace stagehand::telemetry
