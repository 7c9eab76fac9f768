// Grouping: small blocks share units, so that rounding to pages wastes little. Blocks in the order are grouped with
// their neighbours, in units of several pages. Blocks outside the order are grouped with each other, in one page, which
// a single one would take as well. So never more than a page is loaded along with a block.
#include <algorithm>

#include "core/memory/registry.h"

namespace stagehand::core {
namespace {

constexpr uint64_t kBlockAlignment = 256;
constexpr uint64_t kSmallPages = 2;  // in the order, blocks of fewer pages are grouped
// Small blocks are grouped in units of up to kGroupPages pages, so that rounding to whole pages wastes little. A unit
// takes at most 1/kGroupPart of the memory.
constexpr uint64_t kGroupPages = 8, kGroupPart = 8;

uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Nobody relies on the unit's size yet. It has no memory, so it is in no plan and in no launchable graph. It was never
// loaded, and nobody holds, loads, updates or protects it.
bool untouched(const Unit& unit) {
    return unit.live && unit.memory == Memory::none && unit.serial() == 0 && !unit.load() && unit.held == 0 &&
           !unit.bringing && !unit.updating() && unit.protections == 0;
}

}  // namespace

uint64_t Registry::group_pages(uint64_t budget_pages) {
    return std::clamp<uint64_t>(budget_pages / kGroupPart, 1, kGroupPages);
}

bool Registry::has_small_blocks() {
    return std::ranges::any_of(blocks(), [&](const Block& block) {
        return block.id && !(block.flags & SH_BLOCK_UNORDERED) && block.bytes < kSmallPages * page_bytes_;
    });
}

// `room`: the size in bytes that a group may have now. It may have been larger when the group was begun.
bool Registry::takes_more(const Group& group, const sh_block_desc& desc, uint64_t room) const {
    if (group.unit == kNone || !untouched(units_[group.unit])) return false;
    return round_up(units_[group.unit].bytes, kBlockAlignment) + desc.bytes <= std::min(room, group.room);
}

// Takes a record for the block, and a record for a unit if no group takes the block. Addresses are relative to the unit
// until lay_out().
void Registry::place(const sh_block_desc& desc, const SetPart& part, uint64_t group_pages, bool may_reuse,
                     Addition& added) {
    const bool unordered = desc.flags & SH_BLOCK_UNORDERED;
    const bool small = part.set == kNone && desc.bytes < (unordered ? 1 : kSmallPages) * page_bytes_;
    const uint64_t room = (unordered ? 1 : group_pages) * page_bytes_;
    Group& group = groups_[unordered];
    uint32_t index = group.unit;
    if (!small || !takes_more(group, desc, room)) {
        index = take_unit(may_reuse);
        added.units.push_back(index);
        units_[index].part = part;
        units_[index].whole = !maps_pages_ || units_[index].is_member();
        units_[index].unordered = unordered;
        if (small)
            group = {index, std::max(room, round_up(desc.bytes, page_bytes_))};
        else if (!unordered)
            group = Group();  // a block after a large one is no neighbour of a block before it
    } else if (index == added.groups[unordered].unit &&
               std::none_of(added.grown.begin(), added.grown.end(), [&](const auto& g) { return g.unit == index; })) {
        added.grown.push_back({index, units_[index].bytes, units_[index].whole});
    }
    const uint32_t block = take_block(may_reuse);
    added.blocks.push_back(block);
    append(block, index, desc);
}

void Registry::append(uint32_t index, uint32_t unit_index, const sh_block_desc& desc) {
    Unit& unit = units_[unit_index];
    Block& block = blocks_[index];
    uint32_t& last = beside_[unit_index].last_block;
    block.address = round_up(unit.bytes, kBlockAlignment);
    block.bytes = desc.bytes;
    block.flags = desc.flags;
    block.unit = unit_index;
    block.previous = last;
    (last == kNone ? unit.first_block : blocks_[last].next) = index;
    last = index;
    unit.block_count++;
    unit.whole |= (desc.flags & SH_BLOCK_WHOLE) != 0;
    set_bytes(unit, block.address + desc.bytes);
}

// Sets the offsets of the new units in their range, and returns the size of the range. Packs that later calls may
// continue get room for that, because addresses cost nothing.
uint64_t Registry::lay_out(const Addition& added) {
    if (!maps_pages_) return 0;
    uint64_t end = 0;
    for (const uint32_t index : added.units) {
        Unit& unit = units_[index];
        if (unit.is_member()) continue;
        const Group& group = groups_[unit.unordered];
        unit.address = end;
        end += group.unit == index ? group.room : unit.pages * page_bytes_;
    }
    return end;
}

void Registry::set_bytes(Unit& unit, uint64_t bytes) {
    const bool counts = unit.part.set == kNone;
    if (counts) model_pages_ -= unit.pages;
    unit.bytes = bytes;
    unit.pages = static_cast<uint32_t>((bytes + page_bytes_ - 1) / page_bytes_);
    if (counts) model_pages_ += unit.pages;
}

// Blocks have gone. The pages after the last remaining block become free if nobody relies on them.
void Registry::cut_end(uint32_t index) {
    Unit& unit = units_[index];
    if (!untouched(unit)) return;
    const Block& last = blocks_[beside_[index].last_block];
    set_bytes(unit, last.address + last.bytes - unit.address);
}

bool Registry::has_packed_tensors() {
    const auto all = units();
    return std::any_of(all.begin(), all.end(), [](const Unit& unit) { return unit.live && unit.packed_tensors; });
}

// Finds the ranges that the unit's sources do not cover, after its blocks were added or removed.
void Registry::survey(uint32_t index) {
    Unit& unit = units_[index];
    std::vector<policy::Gap>& gaps = beside_[index].gaps;
    gaps.clear();
    uint64_t end = 0, missing = 0;
    const auto cover = [&](uint64_t from, uint64_t to) {
        if (from > end) {
            gaps.push_back({end, from - end, missing});
            missing += from - end;
        }
        end = to;
    };
    bool joined = true;
    unit.packed_tensors = false;
    for (const Block& block : blocks_of(unit)) {
        for (const transfer::Segment& segment : block.detail->segments) {
            joined = joined && segment.straight() && (end == 0 || segment.joined);
            unit.packed_tensors = unit.packed_tensors || segment.packed();
            cover(segment.offset, segment.offset + segment.bytes);
        }
    }
    unit.in_one_piece = maps_pages_ && unit.block_count == 1 && end > 0 && joined;
    cover(unit.bytes, unit.bytes);
}

}  // namespace stagehand::core
