#include "core/memory/registry.h"

#include <algorithm>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/once_more.h"
#include "core/memory/block_desc.h"
#include "core/memory/block_sources.h"

namespace stagehand::core {

Registry::Registry(BackendDevice& device, uint64_t page_bytes, uint64_t staged_bytes, uint16_t tag)
    : device_(device),
      page_bytes_(page_bytes),
      staged_bytes_(staged_bytes),
      tag_(tag),
      maps_pages_(device.maps_pages()) {}

Registry::~Registry() {
    for (Unit& unit : units())
        if (unit.live) leave_range(unit.range);
    for (Block& block : blocks())
        if (block.detail) close_sources(device_, *block.detail);
}

uint32_t Registry::take_block(bool may_reuse) {
    uint32_t index = static_cast<uint32_t>(blocks_.size());
    if (may_reuse && free_blocks_.first != kNone) {
        index = free_blocks_.first;
        free_blocks_.first = blocks_[index].next;
        blocks_[index].next = kNone;
        free_blocks_.count--;
    } else {
        blocks_.emplace_back();
    }
    Block& block = blocks_[index];
    block.generation++;
    block.id = (uint64_t(tag_) << 48) | (uint64_t(block.generation) << 32) | index;
    return index;
}

void Registry::free_block(uint32_t index) {
    const uint16_t generation = blocks_[index].generation;
    blocks_[index] = Block();
    blocks_[index].generation = generation;
    if (generation == UINT16_MAX) return;  // the next id would repeat one that was given out before
    (free_blocks_.count++ ? blocks_[free_blocks_.last].next : free_blocks_.first) = index;
    free_blocks_.last = index;
}

uint32_t Registry::take_unit(bool may_reuse) {
    uint32_t index = static_cast<uint32_t>(units_.size());
    if (may_reuse && free_units_.first != kNone) {
        index = free_units_.first;
        free_units_.first = units_[index].range;
        units_[index].range = kNone;
        free_units_.count--;
    } else {
        beside_.resize(index + size_t(1));
        units_.emplace_back();
    }
    units_[index].live = true;
    hindered_ += !units_[index].ready();
    return index;
}

void Registry::free_unit(uint32_t index) {
    set_bytes(units_[index], 0);
    hindered_ -= !units_[index].ready();
    units_[index] = Unit();
    beside_[index] = Beside();
    for (Group& group : groups_)
        if (group.unit == index) group = Group();
    (free_units_.count++ ? units_[free_units_.last].range : free_units_.first) = index;
    free_units_.last = index;
}

void Registry::unlink(Block& block) {
    Unit& unit = units_[block.unit];
    (block.previous == kNone ? unit.first_block : blocks_[block.previous].next) = block.next;
    (block.next == kNone ? beside_[block.unit].last_block : blocks_[block.next].previous) = block.previous;
    unit.block_count--;
}

// Reserves one contiguous address range for all new units.
Status Registry::take_range(const Addition& added, uint64_t bytes) {
    if (added.units.empty() || units_[added.units.front()].is_member()) return Status();
    Range range{0, bytes, static_cast<uint32_t>(added.units.size())};
    // Room for both lists, so that nothing fails after the addresses are reserved, or when they are freed.
    ranges_.reserve(ranges_.size() + 1);
    free_ranges_.reserve(ranges_.size() + 1);
    if (maps_pages_) SH_TRY(device_.range_reserve(bytes, page_bytes_, &range.address));
    uint32_t place = static_cast<uint32_t>(ranges_.size());
    if (free_ranges_.empty()) {
        ranges_.push_back(range);
    } else {
        place = free_ranges_.back();
        free_ranges_.pop_back();
        ranges_[place] = range;
    }
    for (const uint32_t index : added.units) {
        units_[index].range = place;
        units_[index].address += range.address;
    }
    return Status();
}

void Registry::leave_range(uint32_t index) {
    if (index == kNone) return;  // the range could not be reserved, or there is none
    Range& range = ranges_[index];
    if (--range.units) return;
    free_ranges_.push_back(index);
    if (!maps_pages_) return;
    if (Status status = once_more([&] { return device_.range_free(range.address, range.bytes); }); !status.ok())
        log_line(SH_LOG_WARNING, "an address range could not be freed: %s", status.text());
}

void Registry::count_model(const Block& block, int64_t sign) {
    const Unit& unit = units_[block.unit];
    const uint64_t bytes = static_cast<uint64_t>(sign) * block.bytes;
    if (unit.is_pool()) return;
    live_blocks_ += static_cast<uint64_t>(sign);
    model_bytes_ += bytes;
    if (unit.is_member()) member_bytes_ += bytes;
}

Status Registry::add(std::span<const sh_block_desc> descs, std::span<const BlockCopies> copies, SetPart part,
                     uint64_t group_pages, bool may_reuse, sh_block* out_ids) {
    SH_TRY(check_blocks(descs, page_bytes_));
    const uint64_t free = blocks_.capacity() - blocks_.size() + (may_reuse ? free_blocks_.count : 0);
    if (descs.size() > free)
        return Status(SH_ERROR_INVALID_ARGUMENT,
                      "count: a runtime can have at most " + std::to_string(blocks_.capacity()) + " blocks");
    Addition added;
    added.groups = groups_;
    added.blocks.reserve(descs.size());  // so that the new records are known after any failure
    added.units.reserve(descs.size());
    added.grown.reserve(groups_.size());
    const Status status = no_throw([&]() -> Status {
        for (const sh_block_desc& desc : descs) place(desc, part, group_pages, may_reuse, added);
        SH_TRY(take_range(added, lay_out(added)));
        for (size_t i = 0; i < descs.size(); i++) {
            Block& block = blocks_[added.blocks[i]];
            block.detail = std::make_unique<BlockDetail>();
            block.detail->on_load = descs[i].on_load;
            block.detail->user_data = descs[i].user_data;
            if (descs[i].name) block.detail->name = descs[i].name;
            SH_TRY(open_sources(device_, descs[i], copies.empty() ? BlockCopies() : copies[i], i, block.address,
                                staged_bytes_, block.detail.get()));
        }
        for (const uint32_t index : added.units) survey(index);
        for (const Addition::Grown& grown : added.grown) survey(grown.unit);
        return Status();
    });
    if (!status.ok()) {
        undo(added);
        return status;
    }
    for (size_t i = 0; i < descs.size(); i++) {
        Block& block = blocks_[added.blocks[i]];
        block.address += units_[block.unit].address;
        count_model(block, 1);
        out_ids[i] = block.id;
    }
    return Status();
}

void Registry::undo(const Addition& added) {
    for (const uint32_t index : added.blocks) {
        if (blocks_[index].detail) close_sources(device_, *blocks_[index].detail);
        unlink(blocks_[index]);
        free_block(index);
    }
    for (const Addition::Grown& grown : added.grown) {
        set_bytes(units_[grown.unit], grown.bytes);
        units_[grown.unit].whole = grown.whole;
        survey_again(grown.unit);
    }
    for (const uint32_t index : added.units) {
        leave_range(units_[index].range);
        free_unit(index);
    }
    groups_ = added.groups;
}

void Registry::remove(std::span<const sh_block> ids) {
    std::vector<uint32_t> touched;
    touched.reserve(ids.size());
    for (const sh_block id : ids) {
        Block* const block = find(id);
        if (!block) continue;
        close_sources(device_, *block->detail);
        count_model(*block, -1);
        touched.push_back(block->unit);
        unlink(*block);
        free_block(index_of(*block));
    }
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (const uint32_t index : touched) {
        if (units_[index].first_block == kNone) {
            leave_range(units_[index].range);
            free_unit(index);
        } else {
            cut_end(index);
            survey_again(index);
        }
    }
}

std::vector<uint32_t> Registry::units_of(std::span<const sh_block> ids) {
    std::vector<uint32_t> units;
    for (const sh_block id : ids) units.push_back(find(id)->unit);
    std::sort(units.begin(), units.end());
    units.erase(std::unique(units.begin(), units.end()), units.end());
    return units;
}

void Registry::set_address(Unit& unit, uint64_t address) {
    for (Block& block : blocks_of(unit)) block.address += address - unit.address;
    unit.address = address;
}

// Without host memory for the gaps, plans count uncovered bytes as covered.
void Registry::survey_again(uint32_t index) noexcept {
    const Status status = no_throw([&] {
        survey(index);
        return Status();
    });
    if (!status.ok()) beside_[index].gaps.clear();
}

std::string Registry::name_of(const Block& block) const {
    const std::string place = "block " + std::to_string(&block - blocks_.data());
    return block.detail && !block.detail->name.empty() ? "block \"" + block.detail->name + "\"" : place;
}

std::string Registry::name_of(const Unit& unit) const {
    if (unit.first_block == kNone) return "a block";
    return name_of(blocks_[unit.first_block]) + (unit.block_count > 1 ? " and others that are loaded with it" : "");
}

}  // namespace stagehand::core
