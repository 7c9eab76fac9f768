// Blocks come, go, and change their contents.
#include <algorithm>
#include <cstring>

#include "core/runtime/runtime.h"

namespace stagehand::core {
namespace {

// Small blocks are packed up to so many pages, so that rounding to pages wastes little, but not beyond so small a part of the memory.
constexpr uint64_t kPackPages = 8, kPackedPart = 8;

}  // namespace

Status Runtime::find_units(std::span<const sh_block> ids, std::vector<uint32_t>* out) {
    for (const sh_block id : ids) {
        const Block* block = registry_.find(id);
        if (!block) return unknown_block(id);
        out->push_back(block->unit);
    }
    std::sort(out->begin(), out->end());
    out->erase(std::unique(out->begin(), out->end()), out->end());
    return Status();
}

Status Runtime::register_blocks(std::span<const sh_block_desc* const> descs, sh_block* out_ids) {
    SH_TRY(usable());
    // What is packed has to fit into the device at once.
    const uint64_t pack_pages = std::clamp<uint64_t>(std::min(device_->arbiter().total_pages(), max_pages_) / kPackedPart, 1, kPackPages);
    SH_TRY(registry_.add(descs, pack_pages, waiters_ == 0, out_ids));
    if (!descs.empty()) {
        replan_wanted_ = eventful_ = true;
        plan_.places.resize(registry_.units().size());
    }
    return Status();
}

Status Runtime::unregister_blocks(std::span<const sh_block> ids, Lock& lock) {
    SH_TRY(usable());
    std::vector<uint32_t> units;
    SH_TRY(find_units(ids, &units));
    for (const sh_block id : ids)
        if (const Block* block = registry_.find(id); block->held) return Status(SH_ERROR_BUSY, registry_.name_of(*block) + " is held");
    for (const uint32_t index : units)
        if (capture_ || graph_that_uses(index))
            return Status(SH_ERROR_BUSY, registry_.name_of(registry_.unit(index)) + " is part of a graph, or of a capture: destroy the graph first");
    waiters_++;
    // Their sources may be freed when this returns: nothing may read or write them then. Where the mutex was given up, others may
    // have begun something anew.
    Status status;
    for (bool quiet = false; status.ok() && !quiet;) {
        changed_.wait(lock, [&] { return !changing_; });   // a plan that is being made counts on the units that there are
        quiet = true;
        for (const uint32_t index : units) {
            Unit& unit = registry_.unit(index);
            const bool queued = unit.load && unit.load->queued;
            if (unit.held && (queued || unit.writing_back || unit.bringing)) {   // for a neighbour: its worker comes to an end by itself
                quiet = false;
                changed_.wait(lock, [&] { return !(unit.load && unit.load->queued) && !unit.writing_back && !unit.bringing; });
                continue;
            }
            const bool dirty = std::any_of(ids.begin(), ids.end(), [&](sh_block id) {
                const Block* block = registry_.find(id);
                return block && block->unit == index && (block->dirty_own || block->dirty_ring);
            });
            if (unit.held && dirty) {
                quiet = false;
                status = write_back_.begin(unit, WriteBack::Part::all);
                if (status.ok()) status = write_back_.wait(unit, lock);
                if (!status.ok()) break;
                continue;
            }
            if (unit.held || !(unit.bringing || unit.writing_back || write_back_.is_dirty(unit) || queued)) continue;
            quiet = false;
            loader_.cancel(unit, lock);
            if (status.ok()) status = write_back_.flush(unit, lock);
            changed_.wait(lock, [&] { return !unit.bringing; });
        }
    }
    if (status.ok()) status = streams_.synchronize_all();
    if (status.ok()) status = loader_.synchronize();
    waiters_--;
    if (closing_) changed_.notify_all();
    SH_TRY(note(status));
    for (const sh_block id : ids)
        if (const Block* block = registry_.find(id); block && block->held) return Status(SH_ERROR_BUSY, registry_.name_of(*block) + " is held");
    std::vector<sh_block> going(ids.begin(), ids.end());
    std::sort(going.begin(), going.end());
    std::vector<uint32_t> gone;
    for (const uint32_t index : units) {
        Unit& unit = registry_.unit(index);
        const auto blocks = registry_.blocks_of(unit);
        const bool goes = std::all_of(blocks.begin(), blocks.end(), [&](const Block& b) { return std::binary_search(going.begin(), going.end(), b.id); });
        if (!goes) continue;
        end_protection(unit, unit.protections);
        drop_contents(unit);
        Status failure;
        loader_.settle(unit, &failure);
        SH_TRY(note(unit.memory == Memory::unordered ? unordered_.drop(unit, lock) : placement_.remove(unit)));
        gone.push_back(index);
    }
    for (const sh_block id : ids)
        if (const Block& block = *registry_.find(id); block.detail->protections) end_protection(registry_.unit(block.unit), block.detail->protections);
    forget_units(gone, lock);
    registry_.remove(ids);
    tell_kept();
    prefetcher_.renew();
    replan_wanted_ = eventful_ = true;
    return Status();
}

// What names units by their places must not take the next unit in the same place for these. They hold no memory any more, all their uses
// have ended, and none is part of a capture or of a graph that could be launched. `gone` is in ascending order.
void Runtime::forget_units(std::span<const uint32_t> gone, Lock& lock) {
    if (gone.empty()) return;
    const auto is_gone = [&](uint32_t unit) { return std::binary_search(gone.begin(), gone.end(), unit); };
    for (const uint32_t index : gone) {
        Unit& unit = registry_.unit(index);
        (void)loader_.wait_issued(unit, lock, 0).ok();   // nothing is queued: gives back a load that has failed
        for (UnitUse& use : unit.uses) events_.give(&use.event);
        unit.uses.clear();
        events_.give(&unit.written_back);
        unordered_.forget(unit);
        if (index < plan_.places.size()) plan_.places[index] = {};
        if (plan_.least_unit == index) plan_.least_unit = kNone;
    }
    ring_.forget(is_gone);
    order_.forget(is_gone, registry_.units().size());
    meter_.forget(is_gone);
}

Status Runtime::block_state(sh_block id, sh_block_state* out) {
    const Block* const block = registry_.find(id);
    if (!block) return unknown_block(id);
    const Unit& unit = registry_.unit(block->unit);
    const uint64_t page = device_->page_bytes();
    const uint64_t begin = block->address - unit.address, end = begin + block->bytes;
    const auto inside = [&](uint64_t first, uint64_t last) {
        const uint64_t from = std::max(begin, first), to = std::min(end, last);
        return from < to ? to - from : 0;
    };
    const uint64_t own = unit.own.size() * page;
    const uint32_t size = out->struct_size;
    *out = {};
    out->struct_size = size;
    out->flags = block->flags;
    out->held = block->held;
    const bool nowhere = registry_.plain() && unit.memory == Memory::none;   // its address comes with its memory
    out->address = nowhere ? nullptr : reinterpret_cast<void*>(block->address);
    out->bytes = block->bytes;
    if (unit.memory == Memory::planned) {
        out->resident_bytes = inside(0, own);
        out->streamed_bytes = inside(own, own + uint64_t(unit.ring_pages) * page);
    }
    out->present_bytes = inside(0, unit.own_valid * page);
    for (uint32_t k = 0; k < unit.ring_pages; k++)
        if (ring_.page(ring_.wrap(uint64_t(unit.ring_offset) + k)).contents == block->unit) out->present_bytes += inside(own + k * page, own + (k + 1) * page);
    if (unit.load && !unit.load->issued) out->present_bytes = 0;
    out->serial = unit.serial;
    const bool whole = out->present_bytes == block->bytes;
    out->state = unit.writing_back                  ? SH_BLOCK_DRAINING
                 : unit.load && unit.load->queued   ? SH_BLOCK_STAGED
                 : unit.load && !unit.ready && whole ? SH_BLOCK_LOADING
                 : whole                            ? SH_BLOCK_READY
                                                    : SH_BLOCK_UNLOADED;
    out->protections = block->detail->protections;
    const std::string& name = block->detail->name;
    name.copy(out->name, std::min(name.size(), sizeof out->name - 1));
    return Status();
}

Status Runtime::invalidate(std::span<const sh_block> ids) {
    SH_TRY(usable());
    std::vector<uint32_t> units;
    SH_TRY(find_units(ids, &units));
    for (const uint32_t index : units) {
        Unit& unit = registry_.unit(index);
        unit.ready = false;
        unit.stale = true;
    }
    // What the engine has changed in these is void; neighbours that share the unit keep what was changed in theirs.
    for (const sh_block id : ids) {
        Block& block = *registry_.find(id);
        block.dirty_own = block.dirty_ring = false;
    }
    Status status;
    for (const uint32_t index : units) {
        Unit& unit = registry_.unit(index);
        const auto blocks = registry_.blocks_of(unit);
        unit.dirty = std::any_of(blocks.begin(), blocks.end(), [](const Block& b) { return b.dirty_ring; });
        if (unit.held || unit.bringing || (unit.load && unit.load->queued)) continue;
        if (Status begun = write_back_.begin(unit, WriteBack::Part::all); status.ok()) status = begun;
        if (!write_back_.is_dirty(unit)) drop_contents(unit);
    }
    eventful_ = true;
    prefetcher_.renew();
    return note(status);
}

Status Runtime::update_begin(std::span<const sh_block> ids, Lock& lock) {
    std::vector<uint32_t> units;
    const auto check = [&] {
        SH_TRY(usable());
        units.clear();
        SH_TRY(find_units(ids, &units));
        for (const sh_block id : ids)
            if (const Block* block = registry_.find(id); block->updating)
                return Status(SH_ERROR_INVALID_STATE, registry_.name_of(*block) + ": an update of its source has begun already");
        for (const uint32_t index : units)   // a launch may be under way already, which only its end will tell
            if (entered_ && entered_->uses(index))
                return Status(SH_ERROR_BUSY, registry_.name_of(registry_.unit(index)) + " is part of a graph that has been entered and not left");
        return Status();
    };
    SH_TRY(check());
    // What the engine has changed on the device goes to the source before the caller does, else it would overwrite the caller's bytes.
    if (!ids.empty()) SH_TRY(write_back(ids, lock));
    SH_TRY(check());   // the mutex was given up
    for (const sh_block id : ids) {
        Block& block = *registry_.find(id);
        Unit& unit = registry_.unit(block.unit);
        if (!block.updating) unit.updating++;   // an id may stand twice
        block.updating = true;
        unit.ready = false;
    }
    waiters_++;
    Status status = wait_for_launches(lock);
    for (const uint32_t index : units) {
        Unit& unit = registry_.unit(index);
        loader_.cancel(unit, lock);
        if (Status done = loader_.wait_read(unit, lock); status.ok()) status = done;
        if (Status written = write_back_.wait(unit, lock); status.ok()) status = written;
    }
    waiters_--;
    if (closing_) changed_.notify_all();
    if (!status.ok()) end_update(ids);   // it has not begun
    return note(status);
}

Status Runtime::update_end(std::span<const sh_block> ids) {
    SH_TRY(usable());
    for (const sh_block id : ids) {
        const Block* block = registry_.find(id);
        if (!block) return unknown_block(id);
        if (!block->updating) return Status(SH_ERROR_INVALID_STATE, registry_.name_of(*block) + ": no update of its source has begun");
    }
    end_update(ids);
    return invalidate(ids);
}

void Runtime::end_update(std::span<const sh_block> ids) {
    for (const sh_block id : ids) {
        Block* const block = registry_.find(id);
        if (!block || !block->updating) continue;   // an id may stand twice
        registry_.unit(block->unit).updating--;
        block->updating = false;
    }
}

Status Runtime::mark_dirty(sh_block id) {
    SH_TRY(usable());
    SH_TRY(only_outside_capture());
    Block* const block = registry_.find(id);
    if (!block) return unknown_block(id);
    if (!(block->flags & SH_BLOCK_MUTABLE)) return Status(SH_ERROR_INVALID_STATE, registry_.name_of(*block) + " is not SH_BLOCK_MUTABLE");
    if (!block->held) return Status(SH_ERROR_INVALID_STATE, registry_.name_of(*block) + " is not held");
    if (block->updating) return Status(SH_ERROR_INVALID_STATE, registry_.name_of(*block) + ": its source is being updated");
    Unit& unit = registry_.unit(block->unit);
    block->dirty_own = !unit.own.empty();
    block->dirty_ring = unit.ring_pages > 0;
    unit.dirty = unit.dirty || block->dirty_ring;
    return Status();
}

Status Runtime::write_back(std::span<const sh_block> ids, Lock& lock) {
    SH_TRY(usable());
    SH_TRY(only_outside_capture());
    std::vector<uint32_t> units;
    SH_TRY(find_units(ids, &units));
    if (ids.empty())
        for (uint32_t i = 0; i < registry_.units().size(); i++) units.push_back(i);
    const auto dirty = [](const Block& block) { return block.dirty_own || block.dirty_ring; };
    for (const uint32_t index : units)
        for (const Block& block : registry_.blocks_of(registry_.unit(index)))
            if (dirty(block) && block.held) return Status(SH_ERROR_BUSY, registry_.name_of(block) + " is dirty and held");
    waiters_++;
    Status status;
    for (const uint32_t index : units)
        if (status.ok() && registry_.unit(index).live) status = write_back_.begin(registry_.unit(index), WriteBack::Part::all);
    for (const uint32_t index : units)
        if (Status written = write_back_.flush(registry_.unit(index), lock); status.ok()) status = written;
    waiters_--;
    if (closing_) changed_.notify_all();
    return note(status);
}

}  // namespace stagehand::core
