#include "core/runtime/access.h"

#include <string>
#include <utility>
#include <vector>

#include "base/no_throw.h"
#include "base/scratch.h"
#include "telemetry/trace.h"

namespace stagehand::core {

void Access::look_ahead(uint64_t now_ns, bool in_parts) {
    if (!gate_.is_open()) return;
    if (plan_.exists() && !gate_.in_graph()) step_order_.prefetcher.pump(now_ns, in_parts);
}

Status Access::release(Block& block, sh_stream stream) {
    Status status = views_.end(block, stream);
    if (telemetry::trace_on()) [[unlikely]]
        movers_.loader.settle_all();
    if (status.ok() && (gate_.in_step() || step_order_.order.known()))
        look_ahead(memory_.device.now_ns(), stream == SH_STREAM_HOST);
    return status.ok() ? gate_.note(movers_.take_failure()) : gate_.note(status);
}

void Access::give(Block& block, Unit& unit, sh_stream stream, uint32_t view_flags, sh_view* out) {
    views_.give(block);
    views_.count_acquire(view_flags);
    if (unit.memory == Memory::unordered) step_order_.unordered.touch(unit);
    if (step_order_.meter.measuring() && unit.held == 1)
        step_order_.meter.begin(memory_.registry.index_of(unit), stream);
    views_.fill(block, unit, view_flags, out);
}

Status Access::acquire(sh_block id, sh_stream stream, uint32_t flags, sh_view* out, Lock& lock) {
    SH_TRY(views_.check_no_capture(stream));
    Block* const found = memory_.registry.find(id);
    if (!found) return gate_.unknown_block(id);
    Block& block = *found;
    Unit& unit = memory_.registry.unit(block.unit);
    const Gate::Inside inside(gate_);
    uint32_t view_flags = 0;
    Status status;
    bool arrived = false, again = false, waited = false;
    // Tries again if another call has cancelled the load, or if the source changed before the view was given.
    do {
        view_flags = 0;
        status = fetcher_.begin(unit, &view_flags, lock);
        if (status.ok() && block.id != id) status = gate_.unknown_block(id);
        if (!status.ok()) break;
        // The unit is held from here on, so that nobody takes its pages while the mutex is given up.
        views_.hold(block, unit);
        const bool asked_before = std::exchange(unit.announced, false);  // the engine was told SH_NOT_READY
        if (asked_before) view_flags &= ~uint32_t(SH_VIEW_HIT);
        if (!std::exchange(arrived, true) && !asked_before)
            step_order_.arrive(memory_.registry.index_of(unit), !unit.unordered);
        status = no_throw([&] { return fetcher_.finish(unit, stream, flags, &view_flags, &waited, lock); });
        again = status.code() == SH_ERROR_CANCELLED || (status.code() == SH_OK && unit.stale());
        unit.announced = status.code() == SH_NOT_READY;
        if (status.code() != SH_OK || again) views_.give_up(block, unit);
    } while (again && !gate_.closing());
    if (again && status.ok()) status = gate_.usable();
    if (status.code() != SH_OK) return gate_.note(status);
    give(block, unit, stream, view_flags, out);
    return Status();
}

Status Access::acquire_many(std::span<const sh_block> ids, sh_stream stream, uint32_t flags,
                            std::span<sh_view* const> out, Lock& lock) {
    struct Wanted {
        Block& block;
        uint32_t view_flags = 0;
    };
    Scratch<Wanted> wanted;
    for (const sh_block id : ids) {
        Block* const block = memory_.registry.find(id);
        if (!block) return gate_.unknown_block(id);
        wanted->push_back({*block});
    }
    SH_TRY(views_.check_no_capture(stream));
    const auto unit_of = [&](const Wanted& one) -> Unit& { return memory_.registry.unit(one.block.unit); };
    size_t held = 0;
    Status status;
    const Gate::Inside inside(gate_);  // so that no record is used for another block
    // All units are begun and held first. Holding them prevents that they evict each other.
    for (; held < ids.size(); held++) {
        Wanted& one = (*wanted)[held];
        status = no_throw([&] {
            if (one.block.id == ids[held]) SH_TRY(fetcher_.begin(unit_of(one), &one.view_flags, lock));
            return one.block.id == ids[held] ? Status() : gate_.unknown_block(ids[held]);
        });
        if (status.code() != SH_OK) break;
        Unit& unit = unit_of(one);
        views_.hold(one.block, unit);
        if (std::exchange(unit.announced, false))
            one.view_flags &= ~uint32_t(SH_VIEW_HIT);
        else
            step_order_.arrive(memory_.registry.index_of(unit), !unit.unordered);
    }
    bool waited = false;
    for (size_t i = 0; i < held && status.code() == SH_OK; i++)
        status = no_throw([&] {
            Wanted& one = (*wanted)[i];
            return fetcher_.finish(unit_of(one), stream, flags, &one.view_flags, &waited, lock);
        });
    // An update of a source has cancelled the load. fetcher_.begin() would report the update now.
    if (status.code() == SH_ERROR_CANCELLED && !gate_.closing())
        status =
            Status(SH_ERROR_INVALID_STATE, "the load of a block was cancelled because its source is being updated");
    for (size_t i = 0; i < held; i++) {
        const Wanted& one = (*wanted)[i];
        Unit& unit = unit_of(one);
        if (status.code() == SH_NOT_READY) unit.announced = true;
        if (status.code() == SH_OK)
            give(one.block, unit, stream, one.view_flags, out[i]);
        else
            views_.give_up(one.block, unit);
    }
    return gate_.note(status);
}

Status Access::prefetch(std::span<const sh_block> ids, Lock& lock) {
    if (gate_.in_graph()) return Status();  // prefetch is a hint
    const Gate::Inside inside(gate_);
    for (const sh_block id : ids) {
        Block* const block = memory_.registry.find(id);
        if (!block || gate_.closing() || gate_.changing() || gate_.in_graph() || gate_.capturing()) break;
        Unit& unit = memory_.registry.unit(block->unit);
        if (!step_order_.order.contains(block->unit) && !fetcher_.hint(unit, lock)) break;
    }
    return Status();
}

}  // namespace stagehand::core
