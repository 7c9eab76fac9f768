// Registry: the blocks and units of a runtime, their ids and their addresses.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/backend_device.h"
#include "base/stable_vector.h"
#include "base/status.h"
#include "core/memory/block.h"

namespace stagehand::core {

class Registry {
public:
    // `tag` tells the runtimes of a process apart in block ids.
    Registry(BackendDevice& device, uint64_t page_bytes, uint16_t tag);
    ~Registry();
    Registry(const Registry&) = delete;
    Registry& operator=(const Registry&) = delete;

    // Copies descriptors, packs small neighbours into units of so many pages at most, reserves addresses, opens sources. All or none.
    Status add(std::span<const sh_block_desc* const> descs, uint64_t pack_pages, sh_block* out_ids);
    // Frees blocks whose units hold no memory any more: all blocks of a unit must go together or the unit stays, smaller.
    void remove(std::span<const sh_block> ids);

    // The record of an id; null when it is stale, foreign or made up.
    Block* find(sh_block id) {
        const uint64_t index = id & 0xffffffff;
        return index < blocks_.size() && blocks_[index].id == id && id != 0 ? &blocks_[index] : nullptr;
    }
    Block& block(uint32_t index) { return blocks_[index]; }
    uint32_t index_of(const Unit& unit) const { return static_cast<uint32_t>(&unit - units_.data()); }
    uint32_t index_of(const Block& block) const { return static_cast<uint32_t>(&block - blocks_.data()); }
    std::span<Block> blocks() { return {blocks_.data(), blocks_.size()}; }
    std::span<Unit> units() { return {units_.data(), units_.size()}; }
    Unit& unit(uint32_t index) { return units_[index]; }
    std::span<Block> blocks_of(const Unit& unit) { return {&blocks_[unit.first_block], unit.block_count}; }
    uint64_t page_bytes() const { return page_bytes_; }
    // Something keeps views of the unit from being given at once, or does no more. Counts the units of which that is so.
    void hinder(Unit& unit, Hindrance why, bool on) noexcept {
        const bool was_ready = unit.ready();
        if (on) unit.hindrances_ |= why;
        else unit.hindrances_ &= static_cast<uint8_t>(~why);
        hindered_ += was_ready;
        hindered_ -= unit.ready();
    }
    uint64_t hindered() const { return hindered_; }
    // The device does not map memory by pages: a unit's memory is one piece, and its address changes with it.
    bool plain() const { return plain_; }
    void set_address(Unit& unit, uint64_t address);
    uint64_t model_bytes() const { return model_bytes_; }
    uint64_t block_count() const { return live_blocks_; }

    // A block's name for messages: its own, or its place.
    std::string name_of(const Block& block) const;
    // A unit's: that of its first block.
    std::string name_of(const Unit& unit) const;

private:
    struct Range {
        uint64_t address = 0, bytes = 0;
        uint32_t units = 0;   // that still lie in it
    };

    Status check(std::span<const sh_block_desc* const> descs) const;
    void pack(std::span<const sh_block_desc* const> descs, uint64_t pack_pages, uint64_t* out_bytes);
    Status open_sources(std::span<const sh_block_desc* const> descs, size_t first_block);
    Status join_segments(BlockDetail& detail);
    Status reach(const transfer::Source& source);
    void close_sources(BlockDetail& detail);
    void release_unit(Unit& unit);

    BackendDevice& device_;
    const uint64_t page_bytes_;
    const uint16_t tag_;
    const bool plain_;
    uint16_t generation_ = 0;
    StableVector<Block> blocks_;   // references stay valid while other threads register blocks
    StableVector<Unit> units_;
    std::vector<Range> ranges_;
    uint64_t model_bytes_ = 0;
    uint64_t live_blocks_ = 0;
    uint64_t hindered_ = 0;   // live units that are not ready
};

}  // namespace stagehand::core
