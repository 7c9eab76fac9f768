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
    if (unit.is_member()) out->flags &= ~uint32_t(SH_VIEW_FIXED_ADDRESS);
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

Status Access::prefetch(std::span<const sh_block> ids, std::span<const float> chances, Lock& lock) {
    if (gate_.in_graph()) return Status();  // prefetch is a hint
    const Gate::Inside inside(gate_);
    for (size_t i = 0; i < ids.size(); i++) {
        Block* const block = memory_.registry.find(ids[i]);
        if (!block || gate_.closing() || gate_.changing() || gate_.in_graph() || gate_.capturing()) break;
        Unit& unit = memory_.registry.unit(block->unit);
        const double chance = chances.empty() ? 1 : chances[i];
        if (!step_order_.order.contains(block->unit) && !fetcher_.hint(unit, chance, lock)) break;
    }
    return Status();
}

Status Access::acquire_members(sh_set set, std::span<const uint32_t> members, sh_stream stream, uint32_t flags,
                               sh_view* out_pool, uint32_t* out_slots, Lock& lock) {
    const Gate::Inside inside(gate_);
    SetPools& sets = step_order_.unordered.sets();
    const Unit* pool = nullptr;
    Scratch<sh_block> blocks;
    SH_TRY(sets.find(set, &pool));
    SH_TRY(sets.blocks_of(*pool, members, &*blocks));
    Scratch<sh_view> views;
    Scratch<sh_view*> out;
    views->resize(members.size());
    for (sh_view& view : *views) {
        view.struct_size = sizeof view;
        out->push_back(&view);
    }
    const SetPools::Call call(sets, *pool, members);
    Status status = acquire_many(*blocks, stream, flags, *out, lock);
    if (status.code() == SH_ERROR_HELD && sets.find(set, &pool).ok())
        status = sets.too_few(*pool, members, std::move(status));
    SH_TRY(status);
    uint32_t view_flags = SH_VIEW_HIT;
    for (size_t i = 0; i < members.size(); i++) {
        out_slots[i] = sets.slot_of(memory_.registry.unit(memory_.registry.find((*blocks)[i])->unit));
        view_flags = (view_flags | (*views)[i].flags) & ((*views)[i].flags | ~uint32_t(SH_VIEW_HIT));
    }
    sets.fill(*pool, set, view_flags, out_pool);
    return Status();
}

Status Access::release_members(sh_set set, std::span<const uint32_t> members, sh_stream stream) {
    SetPools& sets = step_order_.unordered.sets();
    const Unit* pool = nullptr;
    Scratch<sh_block> blocks;
    SH_TRY(sets.find(set, &pool));
    SH_TRY(sets.blocks_of(*pool, members, &*blocks));
    for (const sh_block id : *blocks) {
        const Block& block = *memory_.registry.find(id);
        if (block.held - block.taking < static_cast<uint64_t>(std::ranges::count(*blocks, id)))
            return Status(SH_ERROR_INVALID_STATE, memory_.registry.name_of(block) +
                                                      " cannot be released: it is not held as often. All stay held");
    }
    Status status;
    for (const sh_block id : *blocks) {
        Status released = release(*memory_.registry.find(id), stream);
        if (status.ok()) status = std::move(released);
    }
    return status;
}

Status Access::prefetch_members(sh_set set, std::span<const uint32_t> members, std::span<const float> chances,
                                Lock& lock) {
    SetPools& sets = step_order_.unordered.sets();
    const Unit* pool = nullptr;
    Scratch<sh_block> blocks;
    SH_TRY(sets.find(set, &pool));
    SH_TRY(sets.blocks_of(*pool, members, &*blocks));
    return gate_.capturing() ? Status() : prefetch(*blocks, chances, lock);
}

}  // namespace stagehand::core
