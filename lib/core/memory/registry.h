// Registry: the blocks and units of a runtime, their ids and their addresses.
//
// Records of what was unregistered are used again, the longest free first. A block's id holds how often its record was taken, so that a
// stale one matches nothing; a record that was taken as often as can be counted stays free for ever. A unit has no id: who keeps a unit's
// place has to forget it before the unit goes (Runtime::forget_units()), and nobody may be waiting with a reference to a record.
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
    // A unit's blocks, by address.
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
    Registry(BackendDevice& device, uint64_t page_bytes, uint16_t tag);
    ~Registry();
    Registry(const Registry&) = delete;
    Registry& operator=(const Registry&) = delete;

    // Copies descriptors, packs small neighbours into units of so many pages at most, reserves addresses, opens sources. All or none.
    // `may_reuse`: no call waits inside the runtime, so nobody has a reference to a free record.
    Status add(std::span<const sh_block_desc* const> descs, uint64_t pack_pages, bool may_reuse, sh_block* out_ids);
    // Frees blocks. A unit that has none left must hold no memory any more; others stay as they are.
    void remove(std::span<const sh_block> ids);

    // The record of an id; null when it is stale, foreign or made up.
    Block* find(sh_block id) {
        const uint64_t index = id & 0xffffffff;
        return index < blocks_.size() && blocks_[index].id == id && id != 0 ? &blocks_[index] : nullptr;
    }
    Block& block(uint32_t index) { return blocks_[index]; }
    uint32_t index_of(const Unit& unit) const { return static_cast<uint32_t>(&unit - units_.data()); }
    uint32_t index_of(const Block& block) const { return static_cast<uint32_t>(&block - blocks_.data()); }
    // All records, free ones too: blocks without id, units that are not live.
    std::span<Block> blocks() { return {blocks_.data(), blocks_.size()}; }
    std::span<Unit> units() { return {units_.data(), units_.size()}; }
    Unit& unit(uint32_t index) { return units_[index]; }
    BlocksOfUnit blocks_of(const Unit& unit) { return {blocks_.data(), unit.first_block}; }
    uint64_t page_bytes() const { return page_bytes_; }
    // Something keeps views of the unit from being given at once, or does no more. Counts the units of which that is so.
    void hinder(Unit& unit, Hindrance why, bool on) noexcept {
        const bool was_ready = unit.ready();
        if (on) unit.hindrances_ |= why;
        else unit.hindrances_ &= static_cast<uint8_t>(~why);
        if (!unit.live) return;
        hindered_ += was_ready;
        hindered_ -= unit.ready();
    }
    uint64_t hindered() const { return hindered_; }
    // The device does not map memory by pages: a unit's memory is one piece, and its address changes with it.
    bool plain() const { return plain_; }
    void set_address(Unit& unit, uint64_t address);
    uint64_t model_bytes() const { return model_bytes_; }
    uint64_t model_pages() const { return model_pages_; }
    uint64_t block_count() const { return live_blocks_; }
    // Bytes of a unit that no segment covers.
    std::span<const policy::Gap> gaps_of(uint32_t unit) const { return beside_[unit].gaps; }
    uint64_t link_bytes(uint32_t unit) const { return policy::Unit{units_[unit].bytes, false, gaps_of(unit)}.link_bytes(); }

    // A block's name for messages: its own, or its place.
    std::string name_of(const Block& block) const;
    // A unit's: that of its first block.
    std::string name_of(const Unit& unit) const;

private:
    struct Range {
        uint64_t address = 0, bytes = 0;
        uint32_t units = 0;   // that still lie in it
    };
    // Records to be used again, the longest free first, linked through Block::next and Unit::range: freeing one takes no memory.
    struct FreeRecords {
        uint32_t first = kNone, last = kNone;
        uint64_t count = 0;
    };
    // What is known of a unit beside its record.
    struct Beside {
        uint32_t last_block = kNone;
        std::vector<policy::Gap> gaps;
    };
    // A unit that takes more small blocks, of this call or of later ones.
    struct Pack {
        uint32_t unit = kNone;
        uint64_t room = 0;   // bytes of addresses
    };
    // What one call of add() has changed so far.
    struct Addition {
        struct Grown {
            uint32_t unit;
            uint64_t bytes;
            bool whole;
        };
        std::vector<uint32_t> blocks, units;   // new ones
        std::vector<Grown> grown;              // packs of earlier calls, as they were
        std::array<Pack, 2> packs;             // as they were
    };

    // registry.cpp: records
    uint32_t take_block(bool may_reuse);
    void free_block(uint32_t index);
    uint32_t take_unit(bool may_reuse);
    void free_unit(uint32_t index);
    void unlink(Block& block);
    Status take_range(const Addition& added, uint64_t bytes);
    void leave_range(uint32_t index);
    void undo(const Addition& added);
    // packing.cpp: which block lies where
    bool takes_more(const Pack& pack, const sh_block_desc& desc, uint64_t room) const;
    void place(const sh_block_desc& desc, uint64_t pack_pages, bool may_reuse, Addition& added);
    void append(uint32_t block, uint32_t unit, const sh_block_desc& desc);
    uint64_t lay_out(const Addition& added);
    void set_bytes(Unit& unit, uint64_t bytes);
    void cut_end(uint32_t unit);
    void survey(uint32_t unit);
    void survey_again(uint32_t unit) noexcept;

    BackendDevice& device_;
    const uint64_t page_bytes_;
    const uint16_t tag_;
    const bool plain_;
    StableVector<Block> blocks_;   // references stay valid while other threads register blocks
    StableVector<Unit> units_;
    std::vector<Beside> beside_;   // of each unit
    std::vector<Range> ranges_;
    FreeRecords free_blocks_, free_units_;
    std::vector<uint32_t> free_ranges_;
    std::array<Pack, 2> packs_;    // open ones: of blocks in the order, and outside it
    uint64_t model_bytes_ = 0;
    uint64_t model_pages_ = 0;
    uint64_t live_blocks_ = 0;
    uint64_t hindered_ = 0;   // live units that are not ready
};

}  // namespace stagehand::core
