// Placement: which physical pages lie behind which addresses. Keeps exact account of every mapping, so that a failure half way can
// be undone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/device/page_pool.h"
#include "core/memory/contents.h"
#include "core/memory/registry.h"
#include "core/memory/ring.h"

namespace stagehand::core {

// Where a unit's pages are to lie: `own` pages of its own, the next `ring_pages` in the ring from `ring_offset` on.
struct Place {
    uint32_t own = 0;
    uint32_t ring_pages = 0;
    uint32_t ring_offset = 0;
    bool operator==(const Place&) const = default;
};

// All methods need every use of the mappings that change to have ended, and the runtime's mutex.
class Placement {
public:
    Placement(BackendDevice& device, PagePool& pool, Registry& registry, Ring& ring, Contents& contents)
        : device_(device), pool_(pool), registry_(registry), ring_(ring), contents_(contents) {}

    // Moves from the present mappings to these: places[i] is for unit i; units with Memory::unordered are left alone. Gives pages
    // back before it takes any. Contents of pages that stay where they are stay valid; those in the ring do not.
    // SH_ERROR_BUDGET, and nothing changes, where there is no room for it. After another failure nothing is mapped for any planned unit;
    // SH_ERROR_RUNTIME_LOST if even that failed.
    Status apply(std::span<const Place> places, uint32_t ring_pages);

    // Unmaps every planned unit and gives its pages and the ring's back.
    Status clear();

    // Gives a unit of the unordered cache memory for all its pages, or takes it away.
    Status map_whole(Unit& unit);
    Status unmap_whole(Unit& unit);

    // Takes a planned unit's memory away.
    Status remove(Unit& unit);

    uint64_t pages() const { return pages_; }   // held by this runtime

private:
    Status shrink_own(Unit& unit, uint32_t to);
    Status grow_own(Unit& unit, uint32_t to);
    Status unmap_ring(Unit& unit);
    Status map_ring(Unit& unit, const Place& place);
    Status resize_ring(uint32_t pages);
    Status move(std::span<const Place> places, uint32_t ring_pages);
    // plain_placement.cpp: the same on devices that do not map pages. A resident unit and the ring are an allocation each.
    Status resize_own_plain(Unit& unit, uint32_t to);
    Status place_in_ring(Unit& unit, const Place& place);
    Status resize_ring_plain(uint32_t pages);

    BackendDevice& device_;
    PagePool& pool_;
    Registry& registry_;
    Ring& ring_;
    Contents& contents_;
    uint64_t pages_ = 0;
    uint64_t ring_address_ = 0;   // on devices that do not map pages
    std::vector<sh_backend_page> handles_;   // scratch
};

}  // namespace stagehand::core
