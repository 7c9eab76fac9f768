// Placement: which physical pages lie behind which addresses. It records every mapping exactly, so that it can undo a
// change that failed half way.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/device/page_pool.h"
#include "core/device/unpack_memory.h"
#include "core/memory/contents.h"
#include "core/memory/registry.h"
#include "core/memory/ring.h"

namespace stagehand::core {

// The place of a unit's pages: `own` pages of its own, then `ring_pages` pages of the ring from `ring_offset` on.
struct Place {
    uint32_t own = 0;
    uint32_t ring_pages = 0;
    uint32_t ring_offset = 0;
    bool operator==(const Place&) const = default;
};

// The caller holds the runtime's mutex in all methods. Every use of the mappings that change must have ended.
class Placement {
public:
    Placement(BackendDevice& device, PagePool& pool, Registry& registry, Ring& ring, Contents& contents,
              UnpackMemory& unpack_memory)
        : device_(device),
          pool_(pool),
          registry_(registry),
          ring_(ring),
          contents_(contents),
          unpack_memory_(unpack_memory) {}

    // Moves from the present mappings to these: places[i] is for unit i. Units with Memory::unordered are left alone.
    // Pages are given back before any are taken. Contents of pages that stay in place stay valid, except in the ring.
    // Returns SH_ERROR_BUDGET without any change if there is no room. After another failure no planned unit is mapped.
    // Returns SH_ERROR_RUNTIME_LOST if even the unmapping failed.
    // `kept_places` are those that the chunks that stay had before, from kept_places(), if they must be there again.
    Status apply(std::span<const Place> places, uint32_t ring_pages, const UnpackPlan& unpack,
                 std::span<const uint64_t> kept_places = {});

    // Unmaps every planned unit, and gives back their pages, the pages of the ring and the memory to unpack in.
    Status clear();

    // map_whole() gives a unit of the unordered cache memory for all its pages. unmap_whole() takes it away.
    Status map_whole(Unit& unit);
    Status unmap_whole(Unit& unit);

    // Gives a set's pool so many pages. Those that stay keep their contents on devices that map pages. On others the
    // pool moves.
    Status resize_pool(Unit& pool, uint32_t pages);
    // The member lies in a slot from now on, or in none.
    void enter_slot(Unit& member, uint64_t address);
    void leave_slot(Unit& member) noexcept;

    // From now on, the pages of a unit with all pages of its own count as planned, or as the cache's.
    void hand_over(Unit& unit, Memory to) noexcept { unit.memory = to; }

    // Takes a planned unit's memory away.
    Status remove(Unit& unit);

    // For each unit, the distance of its chunks that stay from the beginning of their memory. UINT64_MAX: none stay.
    std::vector<uint64_t> kept_places() const;
    // The places now, for apply().
    std::vector<Place> places() const;
    uint64_t pages() const { return pages_ + unpack_memory_.pages(); }  // pages that this runtime holds

private:
    Status shrink_own(Unit& unit, uint32_t to);
    Status grow_own(Unit& unit, uint32_t to);
    Status unmap_ring(Unit& unit);
    Status map_ring(Unit& unit, const Place& place);
    Status resize_ring(uint32_t pages);
    Status move(std::span<const Place> places, uint32_t ring_pages, const UnpackPlan& unpack,
                std::span<const uint64_t> kept_places);
    bool keeps(std::span<const Place> places, const UnpackPlan& unpack) const;
    Status keep(std::span<const Place> places, const UnpackPlan& unpack, std::span<const uint64_t> kept_places);
    Status free_unpack_memory();
    // allocated_placement.cpp: the same on devices that do not map pages. There each resident unit is an allocation,
    // and the ring is another one.
    Status reallocate_own(Unit& unit, uint32_t to);
    Status place_in_ring(Unit& unit, const Place& place);
    Status reallocate_ring(uint32_t pages);

    BackendDevice& device_;
    PagePool& pool_;
    Registry& registry_;
    Ring& ring_;
    Contents& contents_;
    UnpackMemory& unpack_memory_;
    uint64_t pages_ = 0;
    uint64_t ring_address_ = 0;             // only on devices that do not map pages
    std::vector<sh_backend_page> handles_;  // scratch
};

}  // namespace stagehand::core
