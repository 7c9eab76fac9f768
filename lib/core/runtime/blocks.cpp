#include "core/runtime/blocks.h"

#include <algorithm>
#include <vector>

#include "base/no_throw.h"
#include "base/unlocked.h"
#include "core/memory/block_desc.h"
#include "core/memory/block_parts.h"
#include "policy/cuts.h"

namespace stagehand::core {

// Packs the segments of blocks with SH_BLOCK_PACK. This takes long, so other calls go on meanwhile.
Status Blocks::pack(std::span<const sh_block_desc> descs, std::vector<BlockCopies>* out, Lock& lock) {
    const bool any = std::ranges::any_of(descs, [](const auto& desc) { return (desc.flags & SH_BLOCK_PACK) != 0; });
    if (!any || parts_.backend().has(SH_BACKEND_CONTENTLESS)) return Status();
    SH_TRY(check_blocks(descs, parts_.page_bytes()));
    out->resize(descs.size());
    const Gate::Inside inside(parts_.gate);
    return unlocked(lock, [&]() -> Status {
        for (size_t i = 0; i < descs.size(); i++)
            if (descs[i].flags & SH_BLOCK_PACK) SH_TRY(pack(descs[i], &(*out)[i]).within(core::describe(descs[i], i)));
        return Status();
    });
}

// The memory of mutable blocks stays, because changes are written there. So nothing is copied but what is packed.
Status Blocks::pack(const sh_block_desc& desc, BlockCopies* out) const {
    const bool stays = desc.flags & SH_BLOCK_MUTABLE;
    return transfer::copy_packed(parts_.backend(), {desc.segments, desc.segment_count},
                                 stays ? transfer::Unpackable::leave : transfer::Unpackable::copy, out);
}

Status Blocks::add(std::span<const sh_block_desc> descs, sh_block* out_ids, Lock& lock) {
    SH_TRY(parts_.gate.usable());
    std::vector<BlockCopies> copies;
    SH_TRY(no_throw([&] { return pack(descs, &copies, lock); }));
    if (!copies.empty()) {  // a plan that is being made knows the present blocks only
        const Gate::Inside inside(parts_.gate);
        parts_.gate.wait(lock, [&] { return !parts_.gate.changing(); });
    }
    SH_TRY(parts_.gate.usable());
    // All blocks of a unit must fit on the device at once.
    SH_TRY(parts_.registry.add(descs, copies, Registry::group_pages(budget_pages()), parts_.gate.is_empty(), out_ids));
    if (!descs.empty()) plan_.want();
    return Status();
}

Status Blocks::add_parts(const sh_block_desc& desc, const sh_part_options& options, std::span<sh_part* const> out_parts,
                         uint64_t* out_count, Lock& lock) {
    const uint64_t page = parts_.page_bytes();
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
    parts_.gate.wait(lock, [&] { return !parts_.gate.changing(); });
    SH_TRY(parts_.gate.usable());
    Block* const block = parts_.registry.find(id);
    if (!block) return parts_.unknown_block(id);
    const std::string name = parts_.registry.name_of(*block);
    if (!block->detail->update)
        return Status(SH_ERROR_INVALID_STATE,
                      name + ": no update of its source has begun: call sh_source_update_begin() first");
    if (captures_.under_way() || graphs_.any_uses(block->unit))
        return Status(SH_ERROR_INVALID_STATE, name +
                                                  " cannot get other segments during a capture or while a graph "
                                                  "uses it: destroy the graph first");
    *out = block;
    return Status();
}

Status Blocks::replace_sources(sh_block id, std::span<const sh_segment> segments, Lock& lock) {
    const Gate::Inside inside(parts_.gate);
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
                      parts_.registry.name_of(*block) + ": the update of its source has ended meanwhile");
    SH_TRY(parts_.registry.replace_sources(*block, desc, copies.empty() ? BlockCopies() : copies.front()));
    plan_.forget_kept(block->unit);
    return Status();
}

// The most that the runtime can have.
uint64_t Blocks::budget_pages() const { return std::min(parts_.device->arbiter().total_pages(), parts_.max_pages); }

Status Blocks::remove(std::span<const sh_block> ids, Lock& lock) {
    SH_TRY(parts_.gate.usable());
    std::vector<uint32_t> units;
    SH_TRY(parts_.find_units(ids, &units));
    for (const sh_block id : ids)
        if (const Block* block = parts_.registry.find(id); block->held > block->detail->readers)
            return Status(SH_ERROR_INVALID_STATE,
                          parts_.registry.name_of(*block) +
                              " cannot be unregistered: a view of it is held. Release the view first");
    for (const uint32_t index : units)
        if (captures_.under_way() || graphs_.any_uses(index))
            return Status(
                SH_ERROR_INVALID_STATE,
                parts_.registry.name_of(parts_.registry.unit(index)) +
                    " cannot be unregistered during a capture or while a graph uses it: destroy the graph first");
    const Gate::Inside inside(parts_.gate);
    SH_TRY(parts_.gate.note(sources_.leave_alone(ids, lock)));
    std::vector<sh_block> going(ids.begin(), ids.end());
    std::sort(going.begin(), going.end());
    std::vector<uint32_t> gone;
    gone.reserve(units.size());
    for (const uint32_t index : units) {
        Unit& unit = parts_.registry.unit(index);
        const auto blocks = parts_.registry.blocks_of(unit);
        const bool goes = std::all_of(blocks.begin(), blocks.end(), [&](const Block& b) {
            return std::binary_search(going.begin(), going.end(), b.id);
        });
        if (!goes) continue;
        protections_.end(unit, unit.protections);
        parts_.contents.drop(unit);
        SH_TRY(parts_.gate.note(unit.memory == Memory::unordered ? parts_.unordered.drop(unit, lock)
                                                                 : parts_.placement.remove(unit)));
        gone.push_back(index);
    }
    for (const sh_block id : ids)
        if (const Block& block = *parts_.registry.find(id); block.detail->protections)
            protections_.end(parts_.registry.unit(block.unit), block.detail->protections);
    // Units that keep other blocks go on without these blocks.
    for (const sh_block id : ids) {
        parts_.changes.forget(*parts_.registry.find(id));
        parts_.changes.end_update(*parts_.registry.find(id));
    }
    forget_units(gone, lock);
    parts_.registry.remove(ids);
    plan_.tell_less_kept();
    parts_.prefetcher.renew();
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
        Unit& unit = parts_.registry.unit(index);
        (void)parts_.loader.wait_issued(unit, lock, 0).ok();  // no load is queued: gives back a failed one
        parts_.contents.leave(unit);
        parts_.changes.leave(unit);
        parts_.unordered.forget(unit);
        plan_.forget(index);
    }
    parts_.ring.forget(is_gone);
    parts_.order.forget(is_gone, parts_.registry.units().size());
    parts_.record.forget(is_gone);
    parts_.meter.forget(is_gone);
    plan_.forget_uses(is_gone);
}

Status Blocks::describe(sh_block id, sh_block_state* out) const {
    const Block* const block = parts_.registry.find(id);
    if (!block) return parts_.unknown_block(id);
    const Unit& unit = parts_.registry.unit(block->unit);
    const uint64_t page = parts_.page_bytes();
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
    // Without memory, such a device has no address for the block.
    const bool nowhere = !parts_.registry.maps_pages() && unit.memory == Memory::none;
    out->address = nowhere ? nullptr : reinterpret_cast<void*>(block->address);
    out->bytes = block->bytes;
    if (unit.memory == Memory::planned) {
        out->resident_bytes = inside(0, own);
        out->streamed_bytes = inside(own, own + uint64_t(unit.ring_pages) * page);
    }
    out->present_bytes = inside(0, unit.own_valid() * page);
    for (uint32_t k = 0; k < unit.ring_pages; k++)
        if (parts_.ring.page_of(unit, k).contents == block->unit)
            out->present_bytes += inside(own + k * page, own + (k + 1) * page);
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

}  // namespace stagehand::core
