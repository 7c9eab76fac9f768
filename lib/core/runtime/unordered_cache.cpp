#include "core/runtime/unordered_cache.h"

#include <algorithm>

namespace stagehand::core {

void UnorderedCache::hold(Unit& unit) {
    worth_.hold(index_of(unit));
    held_ += unit.pages;
    held_peak_ = std::max(held_peak_, held_);
}

void UnorderedCache::unhold(Unit& unit) {
    worth_.release(index_of(unit));
    held_ -= unit.pages;
}

void UnorderedCache::touch(Unit& unit) {
    if (used_ < capacity_) return;   // nothing is in want: who goes first can be told later
    worth_.touch(index_of(unit));
}

std::string UnorderedCache::holder() {
    for (const Block& block : registry_.blocks())
        if (block.held && registry_.unit(block.unit).memory == Memory::unordered) return registry_.name_of(block);
    return "a block";
}

Status UnorderedCache::drop(Unit& unit, std::unique_lock<std::mutex>& lock) {
    const uint32_t index = index_of(unit);
    loader_.cancel(unit, lock);
    SH_TRY(write_back_.flush(unit, lock));
    if (unit.memory != Memory::unordered || unit.held || (unit.load && unit.load->queued)) return Status();
    // Unmapping needs the unit's own copies and uses to have ended.
    SH_TRY(loader_.wait_done_here(unit));
    SH_TRY(streams_.synchronize(unit.used_streams));
    unit.used_streams = 0;
    SH_TRY(placement_.unmap_whole(unit));
    worth_.evict(index);
    used_ -= unit.pages;
    return Status();
}

Status UnorderedCache::make_room(uint64_t pages, std::unique_lock<std::mutex>& lock) {
    while (used_ + pages > capacity_) {
        if (!worth_.victim()) {
            uint64_t kept = 0;
            for (const Unit& unit : registry_.units())
                if (unit.memory == Memory::unordered && unit.protections) kept += unit.own.size();
            const uint64_t page = registry_.page_bytes();
            return Status(SH_ERROR_HELD, std::to_string(pages * page) + " bytes are needed of " + std::to_string(capacity_ * page) +
                                             " for blocks outside the order; " + (held_ ? "views of " + holder() + " and others hold what is there" : "") +
                                             (kept ? (held_ ? ", and " : "") + std::to_string(kept * page) + " bytes are protected" : "") +
                                             ": hold and protect fewer, or set unordered_bytes");
        }
        SH_TRY(drop_one(lock));
    }
    return Status();
}

Status UnorderedCache::drop_one(std::unique_lock<std::mutex>& lock) {
    Unit& unit = registry_.unit(static_cast<uint32_t>(*worth_.victim()));
    SH_TRY(drop(unit, lock));
    if (unit.memory == Memory::none) stats_.evictions++;
    return Status();
}

Status UnorderedCache::place(Unit& unit, std::unique_lock<std::mutex>& lock) {
    if (unit.pages > capacity_)
        return Status(SH_ERROR_BUDGET, "the block needs " + std::to_string(unit.pages * registry_.page_bytes()) +
                                           " bytes, and there are " + std::to_string(capacity_ * registry_.page_bytes()) +
                                           " for blocks outside the order");
    SH_TRY(make_room(unit.pages, lock));
    used_ += unit.pages;
    Status status = placement_.map_whole(unit);
    // There may be less than was granted: the budget was lowered, or others have still to give back.
    while (status.code() == SH_ERROR_OUT_OF_DEVICE_MEMORY && worth_.victim()) {
        status = drop_one(lock);
        if (status.ok()) status = placement_.map_whole(unit);
    }
    if (!status.ok()) used_ -= unit.pages;
    if (status.code() == SH_ERROR_OUT_OF_DEVICE_MEMORY) return Status(SH_ERROR_BUDGET, status.text());
    SH_TRY(status);
    worth_.insert(index_of(unit), unit.bytes, static_cast<double>(registry_.link_bytes(index_of(unit))));
    if (unit.protections) pin(unit);   // until it is no longer protected
    stats_.remaps++;
    return Status();
}

void UnorderedCache::hand_over(Unit& unit) {
    worth_.forget(index_of(unit));
    used_ -= unit.pages;
    unit.memory = Memory::planned;
}

Status UnorderedCache::resize(uint64_t pages, std::unique_lock<std::mutex>& lock) {
    capacity_ = pages;
    // What is protected goes last, where its memory was promised to others before.
    for (Unit& unit : registry_.units()) {
        while (used_ > capacity_ && worth_.victim()) SH_TRY(drop_one(lock));
        if (used_ <= capacity_) break;
        if (unit.memory == Memory::unordered && unit.protections && !unit.held) SH_TRY(drop(unit, lock));
    }
    return make_room(0, lock);
}

}  // namespace stagehand::core
