// Views: which blocks are held, and what the library tells an engine about them.
#pragma once

#include <cstdint>

#include <stagehand/streaming.h>

#include "base/status.h"
#include "core/runtime/clearance.h"
#include "core/runtime/step_order.h"
#include "telemetry/trace.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class Views {
public:
    // A flag among those of a view while the view is acquired: its bytes were there in time.
    static constexpr uint32_t kInTime = uint32_t(1) << 31;

    Views(Gate& gate, ModelMemory& memory, Movers& movers, StepOrder& step_order, Clearance& clearance);

    // Takes a view and returns true if the bytes are there and nothing has to be noted.
    bool take_ready(sh_block id, sh_view* out) noexcept {
        Block* const block = memory_.registry.find(id);
        if (!block || telemetry::trace_on()) [[unlikely]]
            return false;
        Unit& unit = memory_.registry.unit(block->unit);
        if (!unit.ready()) return false;
        take(*block, unit);
        gate_.stats().acquires++;
        gate_.stats().hits++;
        gate_.stats().in_time++;
        fill(*block, unit, SH_VIEW_HIT, out);
        return true;
    }
    // Ends a view of a resident block and returns true if nothing has to be fenced, loaded, written or reported.
    bool end_plainly(sh_block id, sh_stream stream) noexcept {
        Block* const block = memory_.registry.find(id);
        if (!block || block->held == block->taking || telemetry::trace_on()) [[unlikely]]
            return false;
        Unit& unit = memory_.registry.unit(block->unit);
        if (!unit.plain_release() || movers_.write_back.has_failure()) return false;
        uint64_t streams = 0;
        if (stream != SH_STREAM_HOST && !(gate_.in_step() && memory_.streams.mark_if_last(stream, &streams)))
            return false;
        drop(*block, unit);
        memory_.contents.note_release(unit, streams);
        return true;
    }

    // Counts a view in or out, and does no more. A capture needs only that.
    void take(Block& block, Unit& unit) noexcept {
        block.held++;
        unit.held++;
        gate_.view_taken();
    }
    void drop(Block& block, Unit& unit) noexcept {
        block.held--;
        unit.held--;
        gate_.view_ended();
    }
    // For a call that may give up the mutex, and does what follows from it outside a capture. Until the call
    // has given the view to the engine, or to end(), it alone may end it.
    void hold(Block& block, Unit& unit);
    void give(Block& block) noexcept { block.taking--; }
    void give_up(Block& block, Unit& unit) {
        give(block);
        unhold(block, unit);
    }
    void fill(const Block& block, const Unit& unit, uint32_t flags, sh_view* out) const {
        const uint32_t size = out->struct_size;
        *out = {size,        (flags & ~kInTime) | flags_,
                block.id,    reinterpret_cast<void*>(block.address),
                block.bytes, unit.serial()};
    }
    // Ends a view on the stream. Later loads wait for all that is queued on the stream now. If the view stays held
    // after an error, the error says so.
    Status end(Block& block, sh_stream stream);
    // Ends all views that are held, without a fence.
    void drop_all();

    // An error if the stream captures. The capture is not one of this runtime, so nothing of this runtime may take part
    // in it.
    Status check_no_capture(sh_stream stream) const;
    // Counts a wait of an acquire, which lasted from `began_ns` until now.
    void note_wait(const Unit& unit, uint64_t began_ns, uint32_t* view_flags);
    void count_acquire(uint32_t view_flags);

private:
    void unhold(Block& block, Unit& unit);

    Gate& gate_;
    ModelMemory& memory_;
    Movers& movers_;
    StepOrder& step_order_;
    Clearance& clearance_;
    const uint32_t flags_;  // of every view
};

}  // namespace stagehand::core
