#include "core/runtime/views.h"

#include "base/no_throw.h"

namespace stagehand::core {

Views::Views(Gate& gate, ModelMemory& memory, Movers& movers, StepOrder& step_order, Clearance& clearance)
    : gate_(gate),
      memory_(memory),
      movers_(movers),
      step_order_(step_order),
      clearance_(clearance),
      flags_(memory.device.maps_pages() ? SH_VIEW_FIXED_ADDRESS : 0) {}

void Views::hold(Block& block, Unit& unit) {
    take(block, unit);
    block.taking++;
    if (unit.held == 1 && unit.memory == Memory::unordered) step_order_.unordered.hold(unit);
    if (telemetry::trace_on()) [[unlikely]]
        block.detail->held_since_ns = memory_.device.now_ns();
}

void Views::unhold(Block& block, Unit& unit) {
    if (telemetry::trace_on() && block.held == 1 && block.detail->held_since_ns) [[unlikely]]
        telemetry::trace_named([&] {
            telemetry::trace_view(gate_.name().c_str(), memory_.registry.name_of(block).c_str(),
                                  block.detail->held_since_ns, memory_.device.now_ns());
        });
    drop(block, unit);
    memory_.contents.note_release(unit, 0);
    if (unit.held) return;
    if (unit.memory == Memory::unordered) step_order_.unordered.unhold(unit);
    clearance_.drop_if_stale(unit);
}

Status Views::end(Block& block, sh_stream stream) {
    Unit& unit = memory_.registry.unit(block.unit);
    Status status;
    if (stream != SH_STREAM_HOST) {
        status = no_throw([&] {
            return memory_.contents.note_use(unit, stream, !gate_.in_step() || thread_stream::is_name(stream));
        });
        if (status.code() == SH_ERROR_INVALID_STATE)
            return status.within(memory_.registry.name_of(block) + " stays held");
        if (!status.ok()) {
            // Without an event, nobody could wait for this use later. So this call waits for it now.
            Status waited = memory_.device.stream_synchronize(stream);
            if (waited.code() == SH_ERROR_INVALID_HANDLE && status.code() == SH_ERROR_INVALID_HANDLE)
                return Status(SH_ERROR_INVALID_HANDLE,
                              memory_.registry.name_of(block) +
                                  " stays held: the device does not know the stream of the release");
            if (!waited.ok())
                status = Status(SH_ERROR_RUNTIME_LOST,
                                std::string(status.text()) + "; waiting for the stream failed too: " + waited.text());
        }
    }
    if (step_order_.meter.measuring() && unit.held == 1) step_order_.meter.end(memory_.registry.index_of(unit), stream);
    memory_.contents.released(unit, stream);
    unhold(block, unit);
    if (unit.held == 0 && unit.dirty() && status.ok())
        status = no_throw([&] { return movers_.write_back.begin(unit, WriteBack::Part::ring); });
    return status;
}

void Views::drop_all() {
    if (!gate_.views()) return;
    for (Unit& unit : memory_.registry.units()) {
        if (!unit.held) continue;
        for (Block& block : memory_.registry.blocks_of(unit))
            while (block.held) drop(block, unit);
    }
}

Status Views::check_no_capture(sh_stream stream) const {
    const Status status = stream == SH_STREAM_HOST ? Status() : memory_.streams.check_no_capture(stream);
    return status.ok() ? status : status.within(gate_.title());
}

void Views::note_wait(const Unit& unit, uint64_t began_ns, uint32_t* view_flags) {
    const uint64_t ended_ns = memory_.device.now_ns();
    gate_.stats().host_waits++;
    gate_.stats().stall_ns += ended_ns - began_ns;
    if (telemetry::trace_on())
        telemetry::trace_named([&] {
            telemetry::trace_wait(gate_.name().c_str(), memory_.registry.name_of(unit).c_str(), began_ns, ended_ns);
        });
    *view_flags |= SH_VIEW_WAITED;
}

void Views::count_acquire(uint32_t view_flags) {
    gate_.stats().acquires++;
    (view_flags & SH_VIEW_HIT ? gate_.stats().hits : gate_.stats().misses)++;
    if (view_flags & kInTime) gate_.stats().in_time++;
}

}  // namespace stagehand::core
