#include "core/runtime/step_count.h"

#include "base/no_throw.h"
#include "telemetry/trace.h"

namespace stagehand::core {

void StepCount::announce() {
    share_.device->notice_free_memory(false);
    share_.arbiter().note_step(share_.tenant);
}

StepCount::Span StepCount::begin() const {
    Span span;
    span.began_ns = share_.backend().now_ns();
    span.before = gate_.stats();
    if (log_.is_open()) (void)no_throw([&] { return span.sets = figures_.sets(), Status(); }).ok();
    return span;
}

void StepCount::end(Span* span) {
    span->ended_ns = share_.backend().now_ns();
    gate_.stats().steps++;
    gate_.stats().last_step_ns = span->ended_ns - span->began_ns;
}

Status StepCount::tell(const Span& span) {
    telemetry::trace_step(gate_.name().c_str(), gate_.stats().steps, span.began_ns, span.ended_ns);
    if (!log_.is_open()) return Status();
    return no_throw([&] {
        sh_runtime_stats after = gate_.stats();
        figures_.stats(&after);
        return log_.write(
            gate_.name(), span.before, after,
            [&](telemetry::JsonText& out) {
                if (span.sets) telemetry::add_sets(out, figures_.sets(), *span.sets);
            },
            [this](telemetry::JsonText& out, bool lists) { figures_.tell(out, lists); });
    });
}

}  // namespace stagehand::core
