#include "core/memory/changes.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace stagehand::core {

Changes::~Changes() {
    for (Unit& unit : registry_.units()) leave(unit);
}

void Changes::mark(Block& block) {
    Unit& unit = registry_.unit(block.unit);
    set_dirty(unit, block, !unit.own.empty(), unit.ring_pages > 0);
    marked_in_ = step_;
    any_ = true;
    const uint32_t since = step_ - std::exchange(unit.changed_in_, step_);
    unit.changed_steps_ = (since < kMemory ? unit.changed_steps_ << since : 0) | 1;
}

bool Changes::any() const { return any_ && step_ - marked_in_ <= kMemory; }

// Counts of steps before the one that begins now, which is number `step_`.
bool Changes::recur(const Unit& unit, bool recurred) const {
    constexpr uint32_t kRecent = 0x1fe, kLongAgo = 0x1fffe;  // the last 8 steps, and the last 16
    const uint32_t since = step_ - unit.changed_in_;
    if (!unit.changed_steps_ || since >= kMemory) return false;
    const uint32_t steps = unit.changed_steps_ << since;
    return recurred ? (steps & kLongAgo) != 0 : std::popcount(steps & kRecent) > 1;
}

void Changes::forget(Block& block) {
    set_dirty(registry_.unit(block.unit), block, false, false);
    block.void_ = true;
}

void Changes::begin_update(Block& block) {
    Unit& unit = registry_.unit(block.unit);
    if (!std::exchange(block.updating_, true)) unit.updates_++;
    registry_.hinder(unit, kUpdating, true);
}

void Changes::end_update(Block& block) {
    Unit& unit = registry_.unit(block.unit);
    if (std::exchange(block.updating_, false)) unit.updates_--;
    registry_.hinder(unit, kUpdating, unit.updates_ > 0);
}

bool Changes::is_dirty(const Unit& unit, Part part) const {
    const auto blocks = registry_.blocks_of(unit);
    return std::any_of(blocks.begin(), blocks.end(),
                       [&](const Block& b) { return b.dirty_ring_ || (part == Part::all && b.dirty_own_); });
}

bool Changes::is_changed(const Unit& unit) const {
    const auto blocks = registry_.blocks_of(unit);
    return unit.writing_ != Writing::none ||
           std::any_of(blocks.begin(), blocks.end(), [](const Block& b) { return b.dirty() || b.written(); });
}

void Changes::set_dirty(Unit& unit, Block& block, bool own, bool ring) {
    unit.dirty_blocks_ += ring;
    unit.dirty_blocks_ -= block.dirty_ring_;
    block.dirty_own_ = own;
    block.dirty_ring_ = ring;
}

bool Changes::begin(Unit& unit, Part part) {
    bool any = false;
    for (Block& block : registry_.blocks_of(unit)) {
        if (block.held) continue;  // the engine may still be changing it
        block.void_ = false;
        block.written_ring_ = block.dirty_ring_;
        block.written_own_ = part == Part::all && block.dirty_own_;
        set_dirty(unit, block, block.dirty_own_ && !block.written_own_, false);
        any |= block.written();
    }
    return any;
}

Status Changes::take_event(Unit& unit) { return unit.written_back_ ? Status() : events_.take(&unit.written_back_); }

void Changes::reads(Unit& unit, bool by_workers) {
    registry_.hinder(unit, kBeingRead, true);
    unit.source_written_ = true;
    if (by_workers) unit.writing_ = Writing::queued;
}

void Changes::end(Unit& unit, bool succeeded) {
    unit.writing_ = Writing::none;
    for (Block& block : registry_.blocks_of(unit)) {
        const bool own = std::exchange(block.written_own_, false), ring = std::exchange(block.written_ring_, false);
        if (succeeded || block.void_) continue;
        set_dirty(unit, block, block.dirty_own_ || own, block.dirty_ring_ || ring);
    }
}

bool Changes::has_landed(Unit& unit) {
    if (!unit.source_written_) return true;
    uint32_t done = 0;
    if (!device_.event_query(unit.written_back_, &done).ok() || !done) return false;
    unit.source_written_ = false;
    return true;
}

}  // namespace stagehand::core
