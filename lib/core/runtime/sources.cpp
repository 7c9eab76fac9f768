#include "core/runtime/sources.h"

#include <algorithm>
#include <vector>

#include "base/no_throw.h"

namespace stagehand::core {

// Nothing that was begun reads or writes the block's source, or uses the memory of its unit.
bool Sources::is_left_alone(const Block& block) {
    Unit& unit = memory_.registry.unit(block.unit);
    if (block.detail->readers || gate_.changing() || unit.bringing || !movers_.loader.is_quiet(unit)) return false;
    return movers_.write_back.is_flushed(unit, block) && memory_.streams.are_over(unit.used_streams());
}

// Other calls may begin new work while the mutex is given up. So everything is checked again until nothing had to be
// waited for.
Status Sources::leave_alone(std::span<const sh_block> ids, Lock& lock) {
    std::vector<uint32_t> indices;
    for (const sh_block id : ids) indices.push_back(memory_.registry.index_of(*memory_.registry.find(id)));
    SH_TRY(memory_.streams.wait(~uint64_t(0), lock));
    for (bool alone = false; !alone;) {
        SH_TRY(gate_.usable());
        // A plan that is being made relies on the present units.
        gate_.wait(lock, [&] { return !gate_.changing(); });
        alone = true;
        for (const sh_block id : ids) {
            const Block* const block = memory_.registry.find(id);
            if (!block) return gate_.unknown_block(id);
            if (block->held > block->detail->readers)
                return Status(SH_ERROR_INVALID_STATE,
                              memory_.registry.name_of(*block) +
                                  " cannot be unregistered: a view of it is held. Release the view first");
            Unit& unit = memory_.registry.unit(block->unit);
            if (is_left_alone(*block)) continue;
            alone = false;
            if (block->detail->readers)
                gate_.wait(lock, [&] {
                    const Block* const still = memory_.registry.find(id);
                    return !still || !still->detail->readers;
                });
            else if (unit.bringing)
                gate_.wait(lock, [&] { return !unit.bringing; });
            else if (unit.load_queued() && unit.held)
                gate_.wait(lock, [&] { return !unit.load_queued(); });  // for a block that shares the unit
            else if (unit.load_queued())
                movers_.loader.cancel(unit, lock);
            else if (!movers_.loader.is_quiet(unit))
                SH_TRY(movers_.loader.wait_quiet(unit, lock));
            else if (!movers_.write_back.is_flushed(unit, *block))
                SH_TRY(movers_.write_back.flush(indices, lock));
            else
                SH_TRY(memory_.streams.wait(unit.used_streams(), lock));
            break;
        }
    }
    return Status();
}

Status Sources::invalidate(std::span<const sh_block> ids) {
    SH_TRY(gate_.usable());
    SH_TRY(gate_.check_blocks(memory_.registry, ids));
    for (const sh_block id : ids) memory_.registry.note_news(*memory_.registry.find(id));
    return spoil(ids, memory_.registry.units_of(ids));
}

Status Sources::spoil(std::span<const sh_block> ids, std::span<const uint32_t> units) {
    for (const uint32_t index : units) memory_.contents.spoil(memory_.registry.unit(index));
    // Changes that the engine made in these blocks are void. Neighbours that share the unit keep theirs.
    for (const sh_block id : ids) memory_.changes.forget(*memory_.registry.find(id));
    Status status;
    for (const uint32_t index : units) {
        Unit& unit = memory_.registry.unit(index);
        if (clearance_.drop_if_stale(unit) || unit.held || unit.bringing || unit.load_queued()) continue;
        if (Status begun = no_throw([&] { return movers_.write_back.begin(unit, WriteBack::Part::all); }); status.ok())
            status = begun;
        clearance_.drop_if_stale(unit);
    }
    step_order_.prefetcher.renew();
    return gate_.note(status);
}

Status Sources::update_begin(std::span<const sh_block> ids, Lock& lock) {
    std::vector<uint32_t> units;
    const auto check = [&] {
        SH_TRY(gate_.usable());
        SH_TRY(gate_.check_blocks(memory_.registry, ids));
        units = memory_.registry.units_of(ids);
        for (const sh_block id : ids) {
            const Block& block = *memory_.registry.find(id);
            if (block.updating())
                return Status(SH_ERROR_INVALID_STATE,
                              memory_.registry.name_of(block) +
                                  ": an update of its source has begun already: call sh_source_update_end() first");
        }
        // A launch may be under way already. Only leaving the graph tells when it ends.
        for (const uint32_t index : units)
            if (graphs_.entered_uses(index))
                return Status(SH_ERROR_INVALID_STATE, memory_.registry.name_of(memory_.registry.unit(index)) +
                                                          " cannot be updated: a graph that uses it was entered and "
                                                          "not left: call sh_graph_leave() first");
        return Status();
    };
    SH_TRY(check());
    const Gate::Inside inside(gate_);
    // From here on no view of the blocks is given and none of them is marked dirty, so that this wait ends.
    for (const sh_block id : ids) {
        Block& block = *memory_.registry.find(id);
        memory_.changes.begin_update(block);
        block.detail->was_replaced = false;
    }
    Status status = no_throw([&] { return wait_for_sources(ids, units, lock); });
    if (!status.ok()) end_update(ids);  // the update has not begun
    updates_++;
    for (const sh_block id : ids)
        if (Block* const block = memory_.registry.find(id); block && block->updating())
            block->detail->update = updates_;
    return gate_.note(status);
}

// Writes the engine's changes on the device to the source first, because a later write-back would overwrite the
// caller's bytes. Then waits until nothing reads the source any more.
Status Sources::wait_for_sources(std::span<const sh_block> ids, std::span<const uint32_t> units, Lock& lock) {
    std::vector<uint32_t> indices;
    for (const sh_block id : ids) indices.push_back(memory_.registry.index_of(*memory_.registry.find(id)));
    SH_TRY(movers_.write_back.flush(indices, lock));
    SH_TRY(graphs_.wait_for_launches(lock));
    gate_.wait(lock, [&] {
        return std::all_of(ids.begin(), ids.end(), [&](sh_block id) {
            const Block* const block = memory_.registry.find(id);
            return !block || !block->detail->readers;
        });
    });
    for (const uint32_t index : units) {
        Unit& unit = memory_.registry.unit(index);
        while (unit.live && !movers_.loader.is_quiet(unit)) {  // checked again after each wait
            if (unit.load_queued())
                movers_.loader.cancel(unit, lock);
            else
                SH_TRY(movers_.loader.wait_quiet(unit, lock));
        }
    }
    for (const uint32_t index : units)  // again, because the mutex was given up
        if (graphs_.entered_uses(index))
            return Status(
                SH_ERROR_INVALID_STATE,
                memory_.registry.name_of(memory_.registry.unit(index)) +
                    " cannot be updated: a graph that uses it was entered and not left: call sh_graph_leave() first");
    return gate_.usable();
}

Status Sources::update_end(std::span<const sh_block> ids) {
    SH_TRY(gate_.usable());
    for (const sh_block id : ids) {
        const Block* block = memory_.registry.find(id);
        if (!block) return gate_.unknown_block(id);
        if (!block->detail->update)
            return Status(SH_ERROR_INVALID_STATE,
                          memory_.registry.name_of(*block) +
                              ": no update of its source has begun: call sh_source_update_begin() first");
    }
    const Status unchanged = note_new_contents(ids);
    // Looked up before the update ends: contents that are not spoiled by then would count as new.
    const std::vector<uint32_t> units = memory_.registry.units_of(ids);
    end_update(ids);
    SH_TRY(spoil(ids, units));
    return unchanged;
}

// The engine has changed its memory, or has replaced the segments. Packed copies are the library's, so the engine
// cannot have changed a block that has nothing else.
Status Sources::note_new_contents(std::span<const sh_block> ids) {
    const auto is_copy = [](const transfer::Segment& segment) { return segment.copy != nullptr; };
    Status status;
    for (const sh_block id : ids) {
        Block& block = *memory_.registry.find(id);
        const BlockDetail& detail = *block.detail;
        if (detail.was_replaced) continue;
        memory_.registry.note_news(block);
        if (status.ok() && detail.plain.empty() && !detail.segments.empty() &&
            std::all_of(detail.segments.begin(), detail.segments.end(), is_copy))
            status = Status(SH_ERROR_INVALID_STATE, memory_.registry.name_of(block) +
                                                        " has the contents that it had: SH_BLOCK_PACK has packed "
                                                        "them, and only sh_source_replace() changes them");
    }
    return status;
}

void Sources::end_update(std::span<const sh_block> ids) {
    for (const sh_block id : ids)
        if (Block* const block = memory_.registry.find(id)) {
            memory_.changes.end_update(*block);
            block->detail->update = 0;
        }
}

Status Sources::mark_dirty(sh_block id) {
    SH_TRY(gate_.usable());
    SH_TRY(gate_.no_capture());
    Block* const block = memory_.registry.find(id);
    if (!block) return gate_.unknown_block(id);
    if (!(block->flags & SH_BLOCK_MUTABLE))
        return Status(SH_ERROR_INVALID_STATE,
                      memory_.registry.name_of(*block) + " cannot be marked dirty: it is not SH_BLOCK_MUTABLE");
    if (!block->held)
        return Status(SH_ERROR_INVALID_STATE, memory_.registry.name_of(*block) +
                                                  " cannot be marked dirty: no view of it is held. Acquire it first");
    if (block->updating())
        return Status(SH_ERROR_INVALID_STATE,
                      memory_.registry.name_of(*block) + " cannot be marked dirty while its source is being updated");
    memory_.changes.mark(*block);
    return Status();
}

Status Sources::write_back(std::span<const sh_block> ids, Lock& lock) {
    SH_TRY(gate_.usable());
    SH_TRY(gate_.no_capture());
    std::vector<uint32_t> indices;
    for (const sh_block id : ids) {
        const Block* const block = memory_.registry.find(id);
        if (!block) return gate_.unknown_block(id);
        indices.push_back(memory_.registry.index_of(*block));
    }
    return write_back(std::span<const uint32_t>(indices), lock);
}

Status Sources::write_back_all(Lock& lock) {
    SH_TRY(gate_.usable());
    SH_TRY(gate_.no_capture());
    std::vector<uint32_t> indices;
    for (const Block& block : memory_.registry.blocks())
        if (block.id && (block.flags & SH_BLOCK_MUTABLE)) indices.push_back(memory_.registry.index_of(block));
    return write_back(std::span<const uint32_t>(indices), lock);
}

Status Sources::write_back(std::span<const uint32_t> indices, Lock& lock) {
    const Gate::Inside inside(gate_);
    return gate_.note(movers_.write_back.flush(indices, lock));
}

}  // namespace stagehand::core
