#include "core/runtime/step_count.h"

#include "base/no_throw.h"
#include "telemetry/trace.h"

namespace stagehand::core {

void StepCount::announce() {
    parts_.device->notice_free_memory(false);
    parts_.device->arbiter().note_step(parts_.tenant);
}

StepCount::Span StepCount::begin() const {
    Span span;
    span.began_ns = parts_.backend().now_ns();
    span.before = parts_.stats;
    return span;
}

void StepCount::end(Span* span) {
    span->ended_ns = parts_.backend().now_ns();
    parts_.stats.steps++;
    parts_.stats.last_step_ns = span->ended_ns - span->began_ns;
}

Status StepCount::tell(const Span& span) {
    telemetry::trace_step(parts_.gate.name().c_str(), parts_.stats.steps, span.began_ns, span.ended_ns);
    if (!log_.is_open()) return Status();
    return no_throw([&] {
        sh_runtime_stats after = parts_.stats;
        figures_.stats(&after);
        return log_.write(parts_.gate.name(), span.before, after,
                          [this](telemetry::JsonText& out, bool lists) { figures_.tell(out, lists); });
    });
}

}  // namespace stagehand::core
