// Registry: the blocks and units of a runtime, their ids and their addresses.
//
// Records of unregistered blocks and units are used again, the longest free first. A block's id contains how often its
// record was taken, so that a stale id matches nothing. A record stays free for ever once that count has reached its
// maximum. A unit has no id: a class that keeps a unit's index must forget it before the unit goes
// (Blocks::forget_units()), and no call may wait with a reference to a record.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "backend/backend_device.h"
#include "base/stable_vector.h"
#include "base/status.h"
#include "core/memory/block.h"
#include "policy/plan.h"

namespace stagehand::core {

class Registry {
public:
    // A unit's blocks, ordered by address.
    class BlocksOfUnit {
    public:
        class iterator {
        public:
            using iterator_category = std::forward_iterator_tag;
            using value_type = Block;
            using difference_type = std::ptrdiff_t;
            using pointer = Block*;
            using reference = Block&;

            iterator() = default;
            iterator(Block* records, uint32_t at) : records_(records), at_(at) {}
            Block& operator*() const { return records_[at_]; }
            Block* operator->() const { return &records_[at_]; }
            iterator& operator++() {
                at_ = records_[at_].next;
                return *this;
            }
            iterator operator++(int) {
                const iterator before = *this;
                ++*this;
                return before;
            }
            bool operator==(const iterator&) const = default;

        private:
            Block* records_ = nullptr;
            uint32_t at_ = kNone;
        };
        BlocksOfUnit(Block* records, uint32_t first) : records_(records), first_(first) {}
        iterator begin() const { return {records_, first_}; }
        iterator end() const { return {records_, kNone}; }

    private:
        Block* records_;
        uint32_t first_;
    };

    // `tag` tells the runtimes of a process apart in block ids.
    // `staged_bytes`: see open_sources().
    Registry(BackendDevice& device, uint64_t page_bytes, uint64_t staged_bytes, uint16_t tag);
    ~Registry();
    Registry(const Registry&) = delete;
    Registry& operator=(const Registry&) = delete;

    // Copies descriptors, groups small neighbours in units of up to `group_pages` pages, reserves addresses, and opens
    // sources. Does all of this or nothing. `may_reuse`: no call waits inside the runtime, so nobody has a reference to
    // a free record.
    // `copies`: of each descriptor's segments, or of none. `part`: what the blocks are of a set, if any.
    Status add(std::span<const sh_block_desc> descs, std::span<const BlockCopies> copies, SetPart part,
               uint64_t group_pages, bool may_reuse, sh_block* out_ids);
    // The most pages of a unit of small neighbours, for a budget of so many pages.
    static uint64_t group_pages(uint64_t budget_pages);
    // A source is a packed tensor in pinned memory, which the device could unpack.
    bool has_packed_tensors();
    // Blocks that are grouped with their neighbours in the order.
    bool has_small_blocks();
    // Gives a block the sources of this descriptor instead of its own, which nothing reads or writes any more. Does all
    // of this or nothing.
    Status replace_sources(Block& block, const sh_block_desc& desc, const BlockCopies& copies);
    // Counts the changes of sources that may call for a new plan.
    uint64_t source_changes() const { return source_changes_; }
    // The plain memory of these packed segments has contents that the packed copies have not.
    void note_news(Block& block) noexcept;
    // Lets loads of the unit read such memory from now on. No worker has a load of the unit.
    void read_news(Unit& unit) noexcept;
    // Frees the packed copies that only earlier loads have read. All of them have ended.
    void close_spent() noexcept;
    // A block of the unit whose loads may change from packed copies to plain memory, or null.
    const Block* find_news(const Unit& unit);
    // Frees those of the blocks that there are. A unit without remaining blocks must hold no memory any more. Other
    // units stay as they are.
    void remove(std::span<const sh_block> ids);

    // The record of an id. Null if the id is stale, of another runtime, or invalid.
    Block* find(sh_block id) {
        const uint64_t index = id & 0xffffffff;
        return index < blocks_.size() && blocks_[index].id == id && id != 0 ? &blocks_[index] : nullptr;
    }
    // The units of these blocks in ascending order, without duplicates.
    std::vector<uint32_t> units_of(std::span<const sh_block> ids);
    Block& block(uint32_t index) { return blocks_[index]; }
    uint32_t index_of(const Unit& unit) const { return static_cast<uint32_t>(&unit - units_.data()); }
    uint32_t index_of(const Block& block) const { return static_cast<uint32_t>(&block - blocks_.data()); }
    // All records, also free ones: blocks without an id, and units that are not live.
    std::span<Block> blocks() { return {blocks_.data(), blocks_.size()}; }
    std::span<Unit> units() { return {units_.data(), units_.size()}; }
    Unit& unit(uint32_t index) { return units_[index]; }
    BlocksOfUnit blocks_of(const Unit& unit) { return {blocks_.data(), unit.first_block}; }
    uint64_t page_bytes() const { return page_bytes_; }
    uint64_t staged_bytes() const { return staged_bytes_; }  // that workers read at once
    // Sets or clears a hindrance of the unit, and counts the units that have one.
    void hinder(Unit& unit, Hindrance why, bool on) noexcept {
        const bool was_ready = unit.ready();
        if (on)
            unit.hindrances_ |= why;
        else
            unit.hindrances_ &= static_cast<uint8_t>(~why);
        if (!unit.live) return;
        hindered_ += was_ready;
        hindered_ -= unit.ready();
    }
    uint64_t hindered() const { return hindered_; }
    // If this is false, a unit's memory is contiguous and the unit's address changes with its memory.
    bool maps_pages() const { return maps_pages_; }
    void set_address(Unit& unit, uint64_t address);
    uint64_t model_bytes() const { return model_bytes_; }
    // What rounding to pages takes. Slots are not rounded.
    uint64_t padding_bytes() const { return model_pages_ * page_bytes_ - (model_bytes_ - member_bytes_); }
    uint64_t block_count() const { return live_blocks_; }
    // Ranges of a unit that no segment covers.
    std::span<const policy::Gap> gaps_of(uint32_t unit) const { return beside_[unit].gaps; }
    uint64_t link_bytes(uint32_t unit) const {
        return policy::Unit{units_[unit].bytes, false, gaps_of(unit)}.link_bytes();
    }

    // A block's name for messages: its own name, or its number.
    std::string name_of(const Block& block) const;
    // A unit's name for messages: the name of its first block.
    std::string name_of(const Unit& unit) const;

private:
    struct Range {
        uint64_t address = 0, bytes = 0;
        uint32_t units = 0;  // units that still lie in the range
    };
    // Records that can be used again, the longest free first. They are linked through Block::next and Unit::range, so
    // that freeing a record needs no memory.
    struct FreeRecords {
        uint32_t first = kNone, last = kNone;
        uint64_t count = 0;
    };
    // Facts about a unit that are not in its record.
    struct Beside {
        uint32_t last_block = kNone;
        std::vector<policy::Gap> gaps;
    };
    // A unit that takes further small blocks, of this call or of later calls.
    struct Group {
        uint32_t unit = kNone;
        uint64_t room = 0;  // bytes of addresses
    };
    // What one call of add() has changed so far.
    struct Addition {
        struct Grown {
            uint32_t unit;
            uint64_t bytes;
            bool whole;
        };
        std::vector<uint32_t> blocks, units;  // new ones
        std::vector<Grown> grown;             // units of earlier calls that have grown, as they were
        std::array<Group, 2> groups;          // as they were before the call
    };

    // registry.cpp: the records
    uint32_t take_block(bool may_reuse);
    void free_block(uint32_t index);
    uint32_t take_unit(bool may_reuse);
    void free_unit(uint32_t index);
    void unlink(Block& block);
    Status take_range(const Addition& added, uint64_t bytes);
    void leave_range(uint32_t index);
    void undo(const Addition& added);
    // grouping.cpp: which block lies where
    bool takes_more(const Group& group, const sh_block_desc& desc, uint64_t room) const;
    void place(const sh_block_desc& desc, const SetPart& part, uint64_t group_pages, bool may_reuse, Addition& added);
    void append(uint32_t block, uint32_t unit, const sh_block_desc& desc);
    uint64_t lay_out(const Addition& added);
    void set_bytes(Unit& unit, uint64_t bytes);
    void count_model(const Block& block, int64_t sign);
    void cut_end(uint32_t unit);
    void survey(uint32_t unit);
    void survey_again(uint32_t unit) noexcept;
    void note_other_sources(Unit& unit) noexcept;  // changed_sources.cpp

    BackendDevice& device_;
    const uint64_t page_bytes_, staged_bytes_;
    const uint16_t tag_;
    const bool maps_pages_;
    StableVector<Block> blocks_;  // references stay valid while other threads register blocks
    StableVector<Unit> units_;
    std::vector<Beside> beside_;  // one for each unit
    std::vector<Range> ranges_;
    FreeRecords free_blocks_, free_units_;
    std::vector<uint32_t> free_ranges_;
    std::array<Group, 2> groups_;  // open ones: one for blocks in the order, one for blocks outside it
    uint64_t model_bytes_ = 0;
    uint64_t member_bytes_ = 0;  // of these, those of members of sets
    uint64_t model_pages_ = 0;   // of the others
    uint64_t live_blocks_ = 0;
    uint64_t hindered_ = 0;  // live units that are not ready
    uint64_t source_changes_ = 0;
};

}  // namespace stagehand::core
