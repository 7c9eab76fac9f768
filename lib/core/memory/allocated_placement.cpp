// Placement on devices that do not map memory by pages. The address of a resident unit is its own allocation. The
// address of a streamed unit is its place in the ring's allocation. So an address changes with the plan, and only then.
#include "core/memory/placement.h"

namespace stagehand::core {

// Gives the unit all of its pages, or none. On such devices units are whole, so that their bytes are contiguous. A
// set's pool may have fewer.
Status Placement::reallocate_own(Unit& unit, uint32_t to) {
    if (to != 0 && ((to != unit.pages && !unit.is_pool()) || !unit.own.empty()))
        return Status(SH_ERROR_INTERNAL,
                      registry_.name_of(unit) + " cannot be partly resident: the device does not map memory by pages");
    uint64_t address = 0;
    unit.own.reserve(to);  // so that nothing fails after the allocation
    if (to)
        SH_TRY(pool_.allocate(to, &address));
    else
        SH_TRY(pool_.release(unit.address, unit.own.size()));
    pages_ = pages_ + to - unit.own.size();
    unit.own.assign(to, 0);  // there are no handles, only their number
    contents_.own_changed(unit, 0);
    registry_.set_address(unit, address);
    return Status();
}

Status Placement::place_in_ring(Unit& unit, const Place& place) {
    if (!unit.own.empty() || place.ring_offset + place.ring_pages > ring_.handles().size())
        return Status(SH_ERROR_INTERNAL,
                      registry_.name_of(unit) + " cannot be placed: its part of the ring is not contiguous");
    registry_.set_address(unit, ring_address_ + place.ring_offset * registry_.page_bytes());
    return Status();
}

// The ring holds no contents any more, so it may move.
Status Placement::reallocate_ring(uint32_t pages) {
    auto& handles = ring_.handles();
    if (pages == handles.size()) return Status();
    handles.reserve(pages);  // so that nothing fails after the allocation
    if (!handles.empty()) SH_TRY(pool_.release(ring_address_, handles.size()));
    pages_ -= handles.size();
    handles.clear();
    if (pages) SH_TRY(pool_.allocate(pages, &ring_address_));
    pages_ += pages;
    handles.assign(pages, 0);
    return Status();
}

}  // namespace stagehand::core
