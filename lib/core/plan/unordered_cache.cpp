#include "core/plan/unordered_cache.h"

#include <algorithm>

#include "base/no_throw.h"
#include "base/size_text.h"
#include "core/plan/drop_unit.h"

namespace stagehand::core {
namespace {

constexpr uint64_t kPartOfOthers = 8;  // of the memory outside the order, for blocks of no set, if they can use it

}  // namespace

void UnorderedCache::pin(Unit& unit) {
    if (unit.is_member()) return sets_.pin(unit);
    worth_.hold(memory_.registry.index_of(unit));
}

void UnorderedCache::unpin(Unit& unit) {
    if (unit.is_member()) return sets_.unpin(unit);
    worth_.release(memory_.registry.index_of(unit));
}

void UnorderedCache::forget(Unit& unit) {
    if (unit.part.set != kNone) return sets_.forget(unit);
    worth_.forget(memory_.registry.index_of(unit));
}

void UnorderedCache::hold(Unit& unit) {
    if (unit.is_member()) return sets_.pin(unit);
    worth_.hold(memory_.registry.index_of(unit));
    (unit.unordered ? held_ : held_to_learn_) += unit.pages;
    // While the order is being learned, most of the other units are here only until they are part of it.
    held_peak_ = std::max(held_peak_, held_ + (order_.known() ? held_to_learn_ : 0));
}

void UnorderedCache::unhold(Unit& unit) {
    if (unit.is_member()) return sets_.unpin(unit);
    worth_.release(memory_.registry.index_of(unit));
    (unit.unordered ? held_ : held_to_learn_) -= unit.pages;
}

void UnorderedCache::touch(Unit& unit) {
    if (unit.is_member()) return sets_.touch(unit);
    if (used_ < capacity_) return;  // no memory is wanted yet: the ranking can be made later
    worth_.touch(memory_.registry.index_of(unit));
}

// Names the views and protections that keep the memory.
std::string UnorderedCache::holders() {
    std::string first;
    uint64_t views = 0, kept = 0;
    for (const Block& block : memory_.registry.blocks()) {
        if (!block.held || memory_.registry.unit(block.unit).memory != Memory::unordered) continue;
        if (!views++) first = memory_.registry.name_of(block);
    }
    for (const Unit& unit : memory_.registry.units())
        if (unit.memory == Memory::unordered && unit.protections) kept += unit.own.size();
    const std::string held = views == 0   ? ""
                             : views == 1 ? "a view of " + first + " holds"
                                          : "views of " + first + " and others hold";
    const std::string protects = kept ? exact_size_text(kept * memory_.registry.page_bytes()) + " are protected" : "";
    if (held.empty() && protects.empty()) return "loads that are under way use the memory";
    return held + (held.empty() ? "" : " the memory") + (held.empty() || protects.empty() ? "" : ", and ") + protects;
}

// Until the order is known, all blocks are outside it, so the number of blocks that are held at once decides. After
// that, the memory for blocks outside the order decides.
Status UnorderedCache::no_room(uint64_t pages) {
    const auto units = memory_.registry.units();
    const bool learning = !order_.known() && std::any_of(units.begin(), units.end(),
                                                         [](const Unit& unit) { return unit.live && !unit.unordered; });
    const auto size = [&](uint64_t count) { return exact_size_text(count * memory_.registry.page_bytes()); };
    return Status(SH_ERROR_HELD, size(pages) + " are needed, but are not free in the " + size(capacity_) +
                                     (learning ? " that blocks have while the order is being learned; "
                                               : " for blocks outside the order; ") +
                                     holders() + ": hold or protect fewer blocks, or " +
                                     (learning ? "create the runtime with a larger max_held, or set a schedule"
                                               : "create the runtime with larger unordered_bytes"));
}

Status UnorderedCache::drop_while(Unit& unit, const std::function<bool()>& may, std::unique_lock<std::mutex>& lock) {
    return drop_unit(unit, memory_, loader_, write_back_, lock, may, [&] {
        SH_TRY(memory_.placement.unmap_whole(unit));
        worth_.evict(memory_.registry.index_of(unit));
        used_ -= unit.pages;
        return Status();
    });
}

Status UnorderedCache::drop(Unit& unit, std::unique_lock<std::mutex>& lock) {
    if (unit.part.set != kNone) return sets_.drop(unit, lock);
    return drop_while(
        unit, [] { return true; }, lock);
}

Status UnorderedCache::make_room(uint64_t pages, std::unique_lock<std::mutex>& lock) {
    while (used() + pages > capacity_) {
        const uint64_t of_sets = sets_.pages(), others = used_ + pages;
        if (worth_.victim()) {
            SH_TRY(drop_one(lock));
        } else if (of_sets > sets_.least_pages() &&
                   others < capacity_) {  // blocks are new since the sets were given theirs
            SH_TRY(sets_.resize(std::max(sets_.least_pages(), capacity_ - others), lock));
        } else {
            return no_room(pages);
        }
    }
    return Status();
}

// The sets have what the others do not need. While the order is being learned, others may need all of their pages.
// Later those that were used need as many as were held at once.
uint64_t UnorderedCache::pages_of_sets() {
    uint64_t total = 0, largest = 0;
    for (const Unit& unit : memory_.registry.units()) {
        const bool outside = unit.live && unit.part.set == kNone && !order_.contains(memory_.registry.index_of(unit));
        if (!outside || (order_.known() && !unit.serial())) continue;
        total += unit.pages;
        largest = std::max<uint64_t>(largest, unit.pages);
    }
    const uint64_t enough = order_.known() ? std::max({held_peak_, largest, capacity_ / kPartOfOthers}) : total;
    const uint64_t others = std::min(total, enough);
    const uint64_t rest = capacity_ > others ? capacity_ - others : 0;
    return std::clamp(rest, sets_.least_pages(), sets_.most_pages());
}

Status UnorderedCache::drop_one(std::unique_lock<std::mutex>& lock) {
    Unit& unit = memory_.registry.unit(static_cast<uint32_t>(*worth_.victim()));
    // A victim that is protected while its last use ends is a victim no more.
    SH_TRY(drop_while(
        unit, [&] { return unit.protections == 0; }, lock));
    if (unit.memory == Memory::none) stats_.evictions++;
    return Status();
}

Status UnorderedCache::place(Unit& unit, std::unique_lock<std::mutex>& lock) {
    if (unit.pages > capacity_)
        return Status(SH_ERROR_BUDGET, memory_.registry.name_of(unit) + " needs " +
                                           exact_size_text(unit.pages * memory_.registry.page_bytes()) + ", but only " +
                                           exact_size_text(capacity_ * memory_.registry.page_bytes()) +
                                           " are there for blocks outside the order");
    if (unit.is_member()) return sets_.place(unit, lock);
    SH_TRY(make_room(unit.pages, lock));
    // expect() may find no host memory, so it comes before anything is mapped or counted.
    worth_.expect(memory_.registry.index_of(unit));
    used_ += unit.pages;
    Status status = no_throw([&] {
        Status mapped = memory_.placement.map_whole(unit);
        // There may be less memory than was granted, because the budget was lowered or others have still to give memory
        // back.
        while (mapped.code() == SH_ERROR_OUT_OF_DEVICE_MEMORY && worth_.victim()) {
            SH_TRY(drop_one(lock));
            mapped = memory_.placement.map_whole(unit);
        }
        return mapped;
    });
    if (!status.ok()) used_ -= unit.pages;
    if (status.code() == SH_ERROR_OUT_OF_DEVICE_MEMORY) return Status(SH_ERROR_BUDGET, status.text());
    SH_TRY(status);
    insert(unit);
    stats_.remaps++;
    return Status();
}

void UnorderedCache::insert(Unit& unit) {
    const uint32_t index = memory_.registry.index_of(unit);
    worth_.insert(index, unit.bytes, static_cast<double>(memory_.registry.link_bytes(index)));
    if (unit.protections) pin(unit);  // until its protection ends
}

void UnorderedCache::hand_over(Unit& unit) {
    worth_.forget(memory_.registry.index_of(unit));
    used_ -= unit.pages;
    memory_.placement.hand_over(unit, Memory::planned);
}

void UnorderedCache::take_back(Unit& unit) {
    insert(unit);
    used_ += unit.pages;
    memory_.placement.hand_over(unit, Memory::unordered);
}

Status UnorderedCache::resize(uint64_t pages, std::unique_lock<std::mutex>& lock) {
    capacity_ = pages;
    const uint64_t of_sets = std::min(capacity_, pages_of_sets());
    if (of_sets < sets_.pages()) SH_TRY(sets_.resize(of_sets, lock));
    // Protected units are dropped last, if their memory was promised to others before.
    for (Unit& unit : memory_.registry.units()) {
        while (used_ + of_sets > capacity_ && worth_.victim()) SH_TRY(drop_one(lock));
        if (used_ + of_sets <= capacity_) break;
        if (unit.memory == Memory::unordered && unit.protections && !unit.held) SH_TRY(drop(unit, lock));
    }
    SH_TRY(make_room(0, lock));
    return sets_.resize(std::min(of_sets, capacity_ > used_ ? capacity_ - used_ : 0), lock);
}

}  // namespace stagehand::core
