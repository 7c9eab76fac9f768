// Blocks come, go, and change their contents.
#include <algorithm>
#include <cstring>

#include "base/no_throw.h"
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
    SH_TRY(registry_.add(descs, pack_pages, gate_.is_empty(), out_ids));
    replan_wanted_ |= !descs.empty();
    return Status();
}

// Whether nothing that was begun reads or writes the block's source, or uses the memory of its unit.
bool Runtime::is_left_alone(const Block& block) {
    Unit& unit = registry_.unit(block.unit);
    return !gate_.changing() && !unit.bringing && loader_.is_quiet(unit) && write_back_.is_flushed(unit, block) && streams_.are_over(unit.used_streams());
}

// Waits until the sources of these blocks hold what was changed on the device, and nothing reads or writes them. Where the mutex was given
// up, others may have begun something anew: all is asked again until nothing had to be waited for.
Status Runtime::leave_alone(std::span<const sh_block> ids, Lock& lock) {
    std::vector<uint32_t> indices;
    for (const sh_block id : ids) indices.push_back(registry_.index_of(*registry_.find(id)));
    SH_TRY(streams_.wait(~uint64_t(0), lock));
    for (bool alone = false; !alone;) {
        SH_TRY(usable());
        gate_.wait(lock, [&] { return !gate_.changing(); });   // a plan that is being made counts on the units that there are
        alone = true;
        for (const sh_block id : ids) {
            const Block* const block = registry_.find(id);
            if (!block) return unknown_block(id);
            if (block->held) return Status(SH_ERROR_BUSY, registry_.name_of(*block) + " is held");
            Unit& unit = registry_.unit(block->unit);
            if (is_left_alone(*block)) continue;
            alone = false;
            if (unit.bringing) gate_.wait(lock, [&] { return !unit.bringing; });
            else if (unit.load_queued() && unit.held) gate_.wait(lock, [&] { return !unit.load_queued(); });   // for a neighbour
            else if (unit.load_queued()) loader_.cancel(unit, lock);
            else if (!loader_.is_quiet(unit)) SH_TRY(loader_.wait_quiet(unit, lock));
            else if (!write_back_.is_flushed(unit, *block)) SH_TRY(write_back_.flush(indices, lock));
            else SH_TRY(streams_.wait(unit.used_streams(), lock));
            break;
        }
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
    const Gate::Inside inside(gate_);
    SH_TRY(note(leave_alone(ids, lock)));
    std::vector<sh_block> going(ids.begin(), ids.end());
    std::sort(going.begin(), going.end());
    std::vector<uint32_t> gone;
    gone.reserve(units.size());
    for (const uint32_t index : units) {
        Unit& unit = registry_.unit(index);
        const auto blocks = registry_.blocks_of(unit);
        const bool goes = std::all_of(blocks.begin(), blocks.end(), [&](const Block& b) { return std::binary_search(going.begin(), going.end(), b.id); });
        if (!goes) continue;
        end_protection(unit, unit.protections);
        contents_.drop(unit);
        SH_TRY(note(unit.memory == Memory::unordered ? unordered_.drop(unit, lock) : placement_.remove(unit)));
        gone.push_back(index);
    }
    for (const sh_block id : ids)
        if (const Block& block = *registry_.find(id); block.detail->protections) end_protection(registry_.unit(block.unit), block.detail->protections);
    for (const sh_block id : ids) {   // their neighbours go on without them
        changes_.forget(*registry_.find(id));
        changes_.end_update(*registry_.find(id));
    }
    forget_units(gone, lock);
    registry_.remove(ids);
    tell_kept();
    prefetcher_.renew();
    replan_wanted_ = true;
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
        contents_.leave(unit);
        changes_.leave(unit);
        unordered_.forget(unit);
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
    out->present_bytes = inside(0, unit.own_valid() * page);
    for (uint32_t k = 0; k < unit.ring_pages; k++)
        if (ring_.page(ring_.wrap(uint64_t(unit.ring_offset) + k)).contents == block->unit) out->present_bytes += inside(own + k * page, own + (k + 1) * page);
    if (unit.load() && !unit.load()->issued) out->present_bytes = 0;
    out->serial = unit.serial();
    const bool whole = out->present_bytes == block->bytes;
    out->state = unit.writing() != Writing::none ? SH_BLOCK_DRAINING
                 : unit.load_queued()            ? SH_BLOCK_STAGED
                 : unit.load() && whole          ? SH_BLOCK_LOADING
                 : whole                         ? SH_BLOCK_READY
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
    for (const uint32_t index : units) contents_.spoil(registry_.unit(index));
    // What the engine has changed in these is void; neighbours that share the unit keep what was changed in theirs.
    for (const sh_block id : ids) changes_.forget(*registry_.find(id));
    Status status;
    for (const uint32_t index : units) {
        Unit& unit = registry_.unit(index);
        if (drop_if_stale(unit) || unit.held || unit.bringing || unit.load_queued()) continue;
        if (Status begun = write_back_.begin(unit, WriteBack::Part::all); status.ok()) status = begun;
        drop_if_stale(unit);
    }
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
            if (const Block* block = registry_.find(id); block->updating())
                return Status(SH_ERROR_INVALID_STATE, registry_.name_of(*block) + ": an update of its source has begun already");
        for (const uint32_t index : units)   // a launch may be under way already, which only its end will tell
            if (entered_ && entered_->uses(index))
                return Status(SH_ERROR_BUSY, registry_.name_of(registry_.unit(index)) + " is part of a graph that has been entered and not left");
        return Status();
    };
    SH_TRY(check());
    const Gate::Inside inside(gate_);
    // From here on no view of them is given and none is marked dirty, so that what is waited for comes to an end.
    for (const sh_block id : ids) changes_.begin_update(*registry_.find(id));
    Status status = no_throw([&] { return wait_for_sources(ids, units, lock); });
    if (!status.ok()) end_update(ids);   // it has not begun
    return note(status);
}

// What the engine has changed on the device goes to the source before the caller does, else it would overwrite the caller's bytes; and nothing
// reads the source any more.
Status Runtime::wait_for_sources(std::span<const sh_block> ids, std::span<const uint32_t> units, Lock& lock) {
    std::vector<uint32_t> indices;
    for (const sh_block id : ids) indices.push_back(registry_.index_of(*registry_.find(id)));
    SH_TRY(write_back_.flush(indices, lock));
    SH_TRY(wait_for_launches(lock));
    for (const uint32_t index : units) {
        Unit& unit = registry_.unit(index);
        while (unit.live && !loader_.is_quiet(unit)) {   // asked anew after each wait
            if (unit.load_queued()) loader_.cancel(unit, lock);
            else SH_TRY(loader_.wait_quiet(unit, lock));
        }
    }
    for (const uint32_t index : units)   // the mutex was given up
        if (entered_ && entered_->uses(index))
            return Status(SH_ERROR_BUSY, registry_.name_of(registry_.unit(index)) + " is part of a graph that has been entered and not left");
    return usable();
}

Status Runtime::update_end(std::span<const sh_block> ids) {
    SH_TRY(usable());
    for (const sh_block id : ids) {
        const Block* block = registry_.find(id);
        if (!block) return unknown_block(id);
        if (!block->updating()) return Status(SH_ERROR_INVALID_STATE, registry_.name_of(*block) + ": no update of its source has begun");
    }
    end_update(ids);
    return invalidate(ids);
}

void Runtime::end_update(std::span<const sh_block> ids) {
    for (const sh_block id : ids)
        if (Block* const block = registry_.find(id)) changes_.end_update(*block);
}

Status Runtime::mark_dirty(sh_block id) {
    SH_TRY(usable());
    SH_TRY(only_outside_capture());
    Block* const block = registry_.find(id);
    if (!block) return unknown_block(id);
    if (!(block->flags & SH_BLOCK_MUTABLE)) return Status(SH_ERROR_INVALID_STATE, registry_.name_of(*block) + " is not SH_BLOCK_MUTABLE");
    if (!block->held) return Status(SH_ERROR_INVALID_STATE, registry_.name_of(*block) + " is not held");
    if (block->updating()) return Status(SH_ERROR_INVALID_STATE, registry_.name_of(*block) + ": its source is being updated");
    changes_.mark(*block);
    return Status();
}

Status Runtime::write_back(std::span<const sh_block> ids, Lock& lock) {
    SH_TRY(usable());
    SH_TRY(only_outside_capture());
    std::vector<uint32_t> indices;
    for (const sh_block id : ids) {
        const Block* const block = registry_.find(id);
        if (!block) return unknown_block(id);
        indices.push_back(registry_.index_of(*block));
    }
    if (ids.empty())
        for (const Block& block : registry_.blocks())
            if (block.id && (block.flags & SH_BLOCK_MUTABLE)) indices.push_back(registry_.index_of(block));
    const Gate::Inside inside(gate_);
    return note(write_back_.flush(indices, lock));
}

}  // namespace stagehand::core
