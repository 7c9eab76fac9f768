// Blocks whose sources become others: the engine replaces them, or a mutable block is read where its changes were
// written.
#include <algorithm>
#include <utility>

#include "base/no_throw.h"
#include "core/memory/block_desc.h"
#include "core/memory/block_sources.h"
#include "core/memory/registry.h"

namespace stagehand::core {

// The place of kept chunks depends on those of the unit before them. So none of the unit's are kept until a plan says
// which.
void Registry::note_other_sources(Unit& unit) noexcept {
    for (Block& block : blocks_of(unit))
        for (transfer::Segment& segment : block.detail->segments) segment.kept.reset();
    unit.delivery = {};
    survey_again(index_of(unit));
    source_changes_++;
}

Status Registry::replace_sources(Block& block, const sh_block_desc& desc, const BlockCopies& copies) {
    SH_TRY(check_blocks({&desc, 1}, page_bytes_));
    Unit& unit = units_[block.unit];
    BlockDetail fresh;
    const Status status = no_throw(
        [&] { return open_sources(device_, desc, copies, 0, block.address - unit.address, staged_bytes_, &fresh); });
    if (!status.ok()) {
        close_sources(device_, fresh);
        return status;
    }
    BlockDetail& detail = *block.detail;
    detail.segments.swap(fresh.segments);
    detail.plain.swap(fresh.plain);
    detail.spent.swap(fresh.spent);
    detail.has_news = false;
    detail.was_replaced = true;
    close_sources(device_, fresh);
    note_other_sources(unit);
    return Status();
}

void Registry::note_news(Block& block) noexcept {
    if (block.detail->plain.empty()) return;
    block.detail->has_news = true;
    units_[block.unit].has_news = true;
}

void Registry::read_news(Unit& unit) noexcept {
    if (!std::exchange(unit.has_news, false)) return;
    for (Block& block : blocks_of(unit)) core::read_news(device_, *block.detail);
    unit.has_spent = true;
    note_other_sources(unit);
}

void Registry::close_spent() noexcept {
    for (Unit& unit : units()) {
        if (!unit.live || !std::exchange(unit.has_spent, false)) continue;
        for (Block& block : blocks_of(unit)) core::close_spent(device_, *block.detail);
    }
}

const Block* Registry::find_news(const Unit& unit) {
    const auto blocks = blocks_of(unit);
    const auto found =
        std::find_if(blocks.begin(), blocks.end(), [](const Block& block) { return !block.detail->plain.empty(); });
    return found == blocks.end() ? nullptr : &*found;
}

}  // namespace stagehand::core
