// Placement on devices that do not map memory by pages. The address of a unit is that of its memory: of an allocation of its own while it
// is resident, of its slot in the ring's allocation while it is streamed. So it changes with the plan, and only then.
#include "core/memory/placement.h"

namespace stagehand::core {

// All pages of a unit, or none. Units are whole on such devices, so that their bytes lie in one piece.
Status Placement::resize_own_plain(Unit& unit, uint32_t to) {
    if (to != 0 && (to != unit.pages || !unit.own.empty()))
        return Status(SH_ERROR_INTERNAL, registry_.name_of(unit) + ": a part of it is to be resident, and the device cannot map the rest behind it");
    uint64_t address = 0;
    if (to) SH_TRY(pool_.allocate(to, &address));
    else SH_TRY(pool_.release(unit.address, unit.own.size()));
    pages_ = pages_ + to - unit.own.size();
    unit.own.assign(to, 0);   // there are no handles, only their number
    contents_.own_changed(unit, 0);
    registry_.set_address(unit, address);
    return Status();
}

Status Placement::place_in_ring(Unit& unit, const Place& place) {
    if (!unit.own.empty() || place.ring_offset + place.ring_pages > ring_.handles().size())
        return Status(SH_ERROR_INTERNAL, registry_.name_of(unit) + ": its part of the ring is not in one piece");
    registry_.set_address(unit, ring_address_ + place.ring_offset * registry_.page_bytes());
    return Status();
}

// Nothing lies in it any more, so it may move.
Status Placement::resize_ring_plain(uint32_t pages) {
    auto& handles = ring_.handles();
    if (pages == handles.size()) return Status();
    if (!handles.empty()) SH_TRY(pool_.release(ring_address_, handles.size()));
    pages_ -= handles.size();
    handles.clear();
    if (pages) SH_TRY(pool_.allocate(pages, &ring_address_));
    pages_ += pages;
    handles.assign(pages, 0);
    return Status();
}

}  // namespace stagehand::core
