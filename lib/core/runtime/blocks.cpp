#include "core/runtime/blocks.h"

#include <algorithm>
#include <vector>

#include "base/no_throw.h"
#include "base/unlocked.h"
#include "core/memory/block_desc.h"
#include "core/memory/block_parts.h"
#include "core/memory/set_shape.h"
#include "policy/cuts.h"

namespace stagehand::core {

// Packs the segments of blocks with SH_BLOCK_PACK. This takes long, so other calls go on meanwhile.
Status Blocks::pack(std::span<const sh_block_desc> descs, std::vector<BlockCopies>* out, Lock& lock) {
    const bool any = std::ranges::any_of(descs, [](const auto& desc) { return (desc.flags & SH_BLOCK_PACK) != 0; });
    if (!any || share_.backend().has(SH_BACKEND_CONTENTLESS)) return Status();
    SH_TRY(check_blocks(descs, share_.page_bytes()));
    out->resize(descs.size());
    const Gate::Inside inside(gate_);
    return unlocked(lock, [&]() -> Status {
        for (size_t i = 0; i < descs.size(); i++)
            if (descs[i].flags & SH_BLOCK_PACK) SH_TRY(pack(descs[i], &(*out)[i]).within(core::describe(descs[i], i)));
        return Status();
    });
}

// The memory of mutable blocks stays, because changes are written there. So nothing is copied but what is packed.
Status Blocks::pack(const sh_block_desc& desc, BlockCopies* out) const {
    const bool stays = desc.flags & SH_BLOCK_MUTABLE;
    return transfer::copy_packed(share_.backend(), {desc.segments, desc.segment_count},
                                 stays ? transfer::Unpackable::leave : transfer::Unpackable::copy, out);
}

// Packs what has to be packed. After that, the blocks may be registered at once.
Status Blocks::pack_and_wait(std::span<const sh_block_desc> descs, std::vector<BlockCopies>* out, Lock& lock) {
    SH_TRY(gate_.usable());
    SH_TRY(no_throw([&] { return pack(descs, out, lock); }));
    if (!out->empty()) {  // a plan that is being made knows the present blocks only
        const Gate::Inside inside(gate_);
        gate_.wait(lock, [&] { return !gate_.changing(); });
    }
    return gate_.usable();
}

Status Blocks::add(std::span<const sh_block_desc> descs, sh_block* out_ids, Lock& lock) {
    std::vector<BlockCopies> copies;
    SH_TRY(pack_and_wait(descs, &copies, lock));
    // All blocks of a unit must fit on the device at once.
    SH_TRY(memory_.registry.add(descs, copies, {}, Registry::group_pages(budget_pages()), gate_.is_empty(), out_ids));
    if (!descs.empty()) plan_.want();
    return Status();
}

Status Blocks::add_set(const sh_set_options& options, std::span<const sh_block_desc> members, sh_block* out_ids,
                       sh_set* out, Lock& lock) {
    const std::string name = options.name ? "set \"" + std::string(options.name) + "\"" : "a set";
    SetShape shape;
    SH_TRY(shape_set(options, members, share_.page_bytes(), &shape).within(name));
    std::vector<sh_block_desc> descs(members.begin(), members.end());
    for (sh_block_desc& desc : descs) desc.flags |= SH_BLOCK_UNORDERED | SH_BLOCK_WHOLE;
    std::vector<BlockCopies> copies;
    SH_TRY(pack_and_wait(descs, &copies, lock));
    sh_block_desc pool = SH_BLOCK_DESC_INIT;
    pool.flags = SH_BLOCK_UNORDERED;
    pool.bytes = shape.bytes;
    pool.name = options.name;
    const bool may_reuse = gate_.is_empty();
    SetPools& sets = step_order_.unordered.sets();
    const uint32_t number = sets.next(may_reuse);
    std::vector<sh_block> ids(1 + descs.size());
    const std::span<sh_block> blocks = std::span(ids).subspan(1);
    SH_TRY(memory_.registry.add({&pool, 1}, {}, {number, shape.call_pages}, 1, may_reuse, ids.data()).within(name));
    Status status = memory_.registry.add(descs, copies, {number, 0}, 1, may_reuse, blocks.data());
    if (status.ok()) status = sets.add(*memory_.registry.find(ids[0]), blocks, shape);
    if (!status.ok()) {
        memory_.registry.remove(ids);  // those that there are
        return status;
    }
    std::ranges::copy(blocks, out_ids);
    *out = SetPools::handle_of(ids[0]);
    plan_.want();
    return Status();
}

Status Blocks::remove_set(sh_set set, Lock& lock) {
    SH_TRY(gate_.usable());
    const Unit* pool = nullptr;
    SetPools& sets = step_order_.unordered.sets();
    SH_TRY(sets.find(set, &pool));
    std::vector<sh_block> ids = sets.blocks_of(*pool);
    ids.push_back(memory_.registry.block(pool->first_block).id);
    return remove(ids, lock);
}

Status Blocks::add_parts(const sh_block_desc& desc, const sh_part_options& options, std::span<sh_part* const> out_parts,
                         uint64_t* out_count, Lock& lock) {
    const uint64_t page = share_.page_bytes();
    SH_TRY(check_blocks({&desc, 1}, page));
    const uint64_t largest = options.largest_bytes ? options.largest_bytes : policy::largest_part(budget_pages(), page);
    const std::vector<policy::Cut> cuts = policy::cut(desc.bytes, options.unit_bytes, largest, out_parts.size());
    std::vector<sh_block> ids(cuts.size());
    SH_TRY(add(BlockParts(desc, cuts).descs(), ids.data(), lock));
    for (size_t i = 0; i < cuts.size(); i++) {
        sh_part& part = *out_parts[i];
        part.reserved = 0;
        part.block = ids[i];
        part.offset = cuts[i].offset;
        part.bytes = cuts[i].bytes;
    }
    *out_count = cuts.size();
    return Status();
}

// A graph copies from the addresses that it was captured with. A plan that is being made counts the present sources.
Status Blocks::find_to_replace(sh_block id, Block** out, Lock& lock) const {
    gate_.wait(lock, [&] { return !gate_.changing(); });
    SH_TRY(gate_.usable());
    Block* const block = memory_.registry.find(id);
    if (!block) return gate_.unknown_block(id);
    const std::string name = memory_.registry.name_of(*block);
    if (!block->detail->update)
        return Status(SH_ERROR_INVALID_STATE,
                      name + ": no update of its source has begun: call sh_source_update_begin() first");
    if (gate_.capturing() || graphs_.any_uses(block->unit))
        return Status(SH_ERROR_INVALID_STATE, name +
                                                  " cannot get other segments during a capture or while a graph "
                                                  "uses it: destroy the graph first");
    *out = block;
    return Status();
}

Status Blocks::replace_sources(sh_block id, std::span<const sh_segment> segments, Lock& lock) {
    const Gate::Inside inside(gate_);
    Block* block = nullptr;
    SH_TRY(find_to_replace(id, &block, lock));
    const uint64_t update = block->detail->update;
    const std::string name = block->detail->name;
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    desc.flags = block->flags;
    desc.bytes = block->bytes;
    desc.segments = segments.data();
    desc.segment_count = segments.size();
    desc.name = name.empty() ? nullptr : name.c_str();
    std::vector<BlockCopies> copies;
    SH_TRY(no_throw([&] { return pack({&desc, 1}, &copies, lock); }));
    SH_TRY(find_to_replace(id, &block, lock));  // again, because the mutex was given up
    if (block->detail->update != update)
        return Status(SH_ERROR_INVALID_STATE,
                      memory_.registry.name_of(*block) + ": the update of its source has ended meanwhile");
    SH_TRY(memory_.registry.replace_sources(*block, desc, copies.empty() ? BlockCopies() : copies.front()));
    plan_.forget_kept(block->unit);
    return Status();
}

// The most that the runtime can have.
uint64_t Blocks::budget_pages() const { return share_.most_pages(); }

Status Blocks::remove(std::span<const sh_block> ids, Lock& lock) {
    SH_TRY(gate_.usable());
    SH_TRY(gate_.check_blocks(memory_.registry, ids));
    const std::vector<uint32_t> units = memory_.registry.units_of(ids);
    for (const sh_block id : ids)
        if (const Block* block = memory_.registry.find(id); block->held > block->detail->readers)
            return Status(SH_ERROR_INVALID_STATE,
                          memory_.registry.name_of(*block) +
                              " cannot be unregistered: a view of it is held. Release the view first");
    for (const uint32_t index : units)
        if (gate_.capturing() || graphs_.any_uses(index))
            return Status(
                SH_ERROR_INVALID_STATE,
                memory_.registry.name_of(memory_.registry.unit(index)) +
                    " cannot be unregistered during a capture or while a graph uses it: destroy the graph first");
    const Gate::Inside inside(gate_);
    SH_TRY(gate_.note(sources_.leave_alone(ids, lock)));
    std::vector<sh_block> going(ids.begin(), ids.end());
    std::sort(going.begin(), going.end());
    std::vector<uint32_t> gone;
    gone.reserve(units.size());
    for (const uint32_t index : units) {
        Unit& unit = memory_.registry.unit(index);
        const auto blocks = memory_.registry.blocks_of(unit);
        const bool goes = std::all_of(blocks.begin(), blocks.end(), [&](const Block& b) {
            return std::binary_search(going.begin(), going.end(), b.id);
        });
        if (!goes) continue;
        protections_.end(unit, unit.protections);
        memory_.contents.drop(unit);
        SH_TRY(gate_.note(unit.memory == Memory::unordered ? step_order_.unordered.drop(unit, lock)
                                                           : memory_.placement.remove(unit)));
        gone.push_back(index);
    }
    for (const sh_block id : ids)
        if (const Block& block = *memory_.registry.find(id); block.detail->protections)
            protections_.end(memory_.registry.unit(block.unit), block.detail->protections);
    // Units that keep other blocks go on without these blocks.
    for (const sh_block id : ids) {
        memory_.changes.forget(*memory_.registry.find(id));
        memory_.changes.end_update(*memory_.registry.find(id));
    }
    forget_units(gone, lock);
    memory_.registry.remove(ids);
    plan_.claim().tell_less_kept();
    plan_.want();
    return Status();
}

// Removes the units from all structures that name a unit by its index, because a new unit may get the same index. The
// units hold no memory any more, all their uses have ended, and no capture or launchable graph uses them. `gone` is in
// ascending order.
void Blocks::forget_units(std::span<const uint32_t> gone, Lock& lock) {
    if (gone.empty()) return;
    const auto is_gone = [&](uint32_t unit) { return std::binary_search(gone.begin(), gone.end(), unit); };
    for (const uint32_t index : gone) {
        Unit& unit = memory_.registry.unit(index);
        (void)movers_.loader.wait_issued(unit, lock, 0).ok();  // no load is queued: gives back a failed one
        memory_.contents.leave(unit);
        memory_.changes.leave(unit);
        step_order_.unordered.forget(unit);
        plan_.forget(index);
    }
    memory_.contents.forget(is_gone);
    step_order_.forget(is_gone, memory_.registry.units().size());
    plan_.forget_uses(is_gone);
}

Status Blocks::describe(sh_block id, sh_block_state* out) const {
    const Block* const block = memory_.registry.find(id);
    if (!block) return gate_.unknown_block(id);
    const Unit& unit = memory_.registry.unit(block->unit);
    const uint64_t page = share_.page_bytes();
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
    // Without memory, there is no address for a member of a set, or on such a device for any block.
    const bool nowhere = (!memory_.registry.maps_pages() || unit.is_member()) && unit.memory == Memory::none;
    out->address = nowhere ? nullptr : reinterpret_cast<void*>(block->address);
    out->bytes = block->bytes;
    if (unit.memory == Memory::planned) {
        out->resident_bytes = inside(0, own);
        out->streamed_bytes = inside(own, own + uint64_t(unit.ring_pages) * page);
    }
    out->present_bytes = inside(0, unit.own_valid() * page);
    for (uint32_t k = 0; k < unit.ring_pages; k++)
        if (memory_.contents.is_in_ring(unit, k)) out->present_bytes += inside(own + k * page, own + (k + 1) * page);
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

Status Blocks::describe_set(sh_set set, sh_set_info* out) {
    SH_TRY(gate_.usable());
    const Unit* pool = nullptr;
    SH_TRY(step_order_.unordered.sets().find(set, &pool));
    step_order_.unordered.sets().describe(*pool, out);
    return Status();
}

}  // namespace stagehand::core
