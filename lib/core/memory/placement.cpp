#include "core/memory/placement.h"

#include <algorithm>

#include "base/no_throw.h"
#include "base/size_text.h"
#include "core/memory/kept_weights.h"

namespace stagehand::core {
namespace {

// A plan may be older than a block, whose record another block had when the plan was made. Such a block has no place.
uint32_t kept_of(const Place& place, const UnpackPlan& unpack, uint32_t unit) {
    return place.ring_pages ? unpack.kept_of(unit) : 0;
}

}  // namespace

Status Placement::shrink_own(Unit& unit, uint32_t to) {
    const uint32_t count = static_cast<uint32_t>(unit.own.size()) - to;
    if (!count) return Status();
    if (!registry_.maps_pages()) return reallocate_own(unit, to);
    const uint64_t page = registry_.page_bytes();
    SH_TRY(device_.pages_unmap(unit.address + to * page, page, count));
    pool_.give(unit.own.data() + to, count);
    pages_ -= count;
    unit.own.resize(to);
    contents_.own_changed(unit, to);
    return Status();
}

Status Placement::grow_own(Unit& unit, uint32_t to) {
    const uint32_t from = static_cast<uint32_t>(unit.own.size());
    if (to <= from) return Status();
    if (!registry_.maps_pages()) return reallocate_own(unit, to);
    const uint64_t page = registry_.page_bytes();
    SH_TRY(pool_.take(to - from, &unit.own));
    if (Status status = device_.pages_map(unit.address + from * page, page, to - from, unit.own.data() + from);
        !status.ok()) {
        pool_.give(unit.own.data() + from, to - from);
        unit.own.resize(from);
        return status;
    }
    pages_ += to - from;
    contents_.own_changed(unit, from);
    return Status();
}

Status Placement::unmap_ring(Unit& unit) {
    if (!unit.ring_pages) return Status();
    const uint64_t page = registry_.page_bytes();
    if (!registry_.maps_pages())
        registry_.set_address(unit, 0);
    else
        SH_TRY(device_.pages_unmap(unit.address + unit.own.size() * page, page, unit.ring_pages));
    unit.ring_pages = 0;
    contents_.ring_changed(unit);
    return Status();
}

Status Placement::map_ring(Unit& unit, const Place& place) {
    if (!place.ring_pages || unit.ring_pages) return Status();
    if (!registry_.maps_pages()) {
        SH_TRY(place_in_ring(unit, place));
    } else {
        const uint64_t page = registry_.page_bytes();
        handles_.clear();
        for (uint32_t k = 0; k < place.ring_pages; k++)
            handles_.push_back(ring_.handles()[ring_.wrap(uint64_t(place.ring_offset) + k)]);
        SH_TRY(device_.pages_map(unit.address + unit.own.size() * page, page, place.ring_pages, handles_.data()));
    }
    unit.ring_offset = place.ring_offset;
    unit.ring_pages = place.ring_pages;
    contents_.ring_changed(unit);
    return Status();
}

Status Placement::resize_ring(uint32_t pages) {
    if (!registry_.maps_pages()) return reallocate_ring(pages);
    auto& handles = ring_.handles();
    if (pages < handles.size()) {
        pool_.give(handles.data() + pages, handles.size() - pages);
        pages_ -= handles.size() - pages;
        handles.resize(pages);
    } else if (pages > handles.size()) {
        const uint64_t more = pages - handles.size();
        SH_TRY(pool_.take(more, &handles));
        pages_ += more;
    }
    return Status();
}

// True if the memory is there already, and the same chunks stay in it.
bool Placement::keeps(std::span<const Place> places, const UnpackPlan& unpack) const {
    if (!(unpack == unpack_memory_.plan())) return false;
    for (uint32_t i = 0; i < places.size(); i++) {
        const Unit& unit = registry_.unit(i);
        const uint64_t own_bytes = places[i].own * registry_.page_bytes();
        if (unit.live && !are_kept(registry_, unit, own_bytes, kept_of(places[i], unpack, i))) return false;
    }
    return true;
}

// If the others have to be where they were, units that have gone or have got other sources leave their room empty.
Status Placement::keep(std::span<const Place> places, const UnpackPlan& unpack, std::span<const uint64_t> kept_places) {
    const uint64_t begin = unpack_memory_.kept_address(), end = begin + unpack.kept_pages * registry_.page_bytes();
    uint64_t address = begin;
    bool fits = true;
    for (uint32_t i = 0; i < places.size(); i++) {
        const uint32_t kept = kept_of(places[i], unpack, i);
        if (!kept) continue;
        if (!kept_places.empty()) {
            if (i >= kept_places.size() || kept_places[i] == UINT64_MAX) continue;
            fits = fits && address <= begin + kept_places[i];
            address = begin + kept_places[i];
        }
        core::keep(registry_, registry_.unit(i), places[i].own * registry_.page_bytes(), kept, &address);
    }
    return fits && address <= end
               ? Status()
               : Status(SH_ERROR_INTERNAL, "packed weights that stay need more memory than was planned");
}

std::vector<uint64_t> Placement::kept_places() const {
    std::vector<uint64_t> places;
    for (const Unit& unit : registry_.units()) {
        const uint64_t address = unit.live ? kept_address(registry_, unit) : 0;
        places.push_back(address ? address - unpack_memory_.kept_address() : UINT64_MAX);
    }
    return places;
}

Status Placement::free_unpack_memory() {
    keep_none(registry_);
    return unpack_memory_.free();
}

Status Placement::move(std::span<const Place> places, uint32_t ring_pages, const UnpackPlan& unpack,
                       std::span<const uint64_t> kept_places) {
    const auto units = registry_.units();
    const bool same_ring = ring_pages == ring_.handles().size();
    if (!keeps(places, unpack)) SH_TRY(free_unpack_memory());
    for (size_t i = 0; i < units.size(); i++) {
        Unit& unit = units[i];
        if (unit.memory == Memory::unordered) continue;
        const Place now{static_cast<uint32_t>(unit.own.size()), unit.ring_pages, unit.ring_offset};
        if (!same_ring || !(now == places[i])) SH_TRY(unmap_ring(unit));
        if (now.own > places[i].own) SH_TRY(shrink_own(unit, places[i].own));
    }
    // The ring gives pages back before resident parts grow, and takes pages after resident parts have shrunk. So the
    // sum never exceeds the larger of the two plans.
    if (ring_pages < ring_.handles().size()) SH_TRY(resize_ring(ring_pages));
    for (size_t i = 0; i < units.size(); i++)
        if (units[i].memory != Memory::unordered) SH_TRY(grow_own(units[i], places[i].own));
    SH_TRY(resize_ring(ring_pages));
    ring_.reset(ring_pages);
    if (unpack.pages && !unpack_memory_.pages()) {
        SH_TRY(unpack_memory_.take(unpack));
        SH_TRY(keep(places, unpack, kept_places));
    }
    for (size_t i = 0; i < units.size(); i++) {
        Unit& unit = units[i];
        if (unit.memory == Memory::unordered) continue;
        SH_TRY(map_ring(unit, places[i]));
        contents_.ring_changed(unit);
        unit.memory = unit.own.empty() && !unit.ring_pages ? Memory::none : Memory::planned;
    }
    return Status();
}

Status Placement::apply(std::span<const Place> places, uint32_t ring_pages, const UnpackPlan& unpack,
                        std::span<const uint64_t> kept_places) {
    const PagePool::Change change(pool_);
    uint64_t before = ring_.size() + unpack_memory_.pages(), after = ring_pages + unpack.all_pages();
    for (size_t i = 0; i < places.size(); i++) {
        const Unit& unit = registry_.unit(static_cast<uint32_t>(i));
        if (unit.memory == Memory::unordered) continue;
        before += unit.own.size();
        after += places[i].own;
    }
    if (after > before && !change.has_room(after - before))
        return Status(SH_ERROR_BUDGET,
                      "no room for " + exact_size_text((after - before) * registry_.page_bytes()) +
                          " more: too little device memory is free, or the budget was lowered meanwhile");
    Status status = no_throw([&] { return move(places, ring_pages, unpack, kept_places); });
    if (status.ok()) return status;
    if (Status undone = clear(); !undone.ok())
        return Status(SH_ERROR_RUNTIME_LOST, std::string("changing the plan failed: ") + status.text() +
                                                 "; undoing the change failed too: " + undone.text());
    return status;
}

std::vector<Place> Placement::places() const {
    std::vector<Place> places;
    for (const Unit& unit : registry_.units())
        places.push_back(unit.memory == Memory::planned
                             ? Place{static_cast<uint32_t>(unit.own.size()), unit.ring_pages, unit.ring_offset}
                             : Place());
    return places;
}

Status Placement::clear() {
    for (Unit& unit : registry_.units()) {
        if (unit.memory == Memory::unordered) continue;
        SH_TRY(unmap_ring(unit));
        SH_TRY(shrink_own(unit, 0));
        unit.memory = Memory::none;
    }
    SH_TRY(resize_ring(0));
    ring_.reset(0);
    return free_unpack_memory();
}

Status Placement::remove(Unit& unit) {
    SH_TRY(unmap_ring(unit));
    return unmap_whole(unit);
}

Status Placement::map_whole(Unit& unit) {
    const PagePool::Change change(pool_);
    SH_TRY(grow_own(unit, unit.pages));
    unit.memory = Memory::unordered;
    return Status();
}

Status Placement::unmap_whole(Unit& unit) {
    if (unit.is_member())
        leave_slot(unit);
    else
        SH_TRY(shrink_own(unit, 0));
    unit.memory = Memory::none;
    return Status();
}

Status Placement::resize_pool(Unit& pool, uint32_t pages) {
    const PagePool::Change change(pool_);
    const uint32_t now = static_cast<uint32_t>(pool.own.size());
    if (pages == now) return Status();
    SH_TRY(shrink_own(pool, registry_.maps_pages() ? std::min(pages, now) : 0));
    Status status = grow_own(pool, pages);
    pool.memory = pool.own.empty() ? Memory::none : Memory::unordered;
    return status;
}

void Placement::enter_slot(Unit& member, uint64_t address) {
    member.own.assign(member.pages, 0);
    registry_.set_address(member, address);
    contents_.own_changed(member, 0);
    member.memory = Memory::unordered;
}

void Placement::leave_slot(Unit& member) noexcept {
    member.own.clear();
    registry_.set_address(member, 0);
    contents_.own_changed(member, 0);
    member.memory = Memory::none;
}

}  // namespace stagehand::core
