#include "core/runtime/plan_memory.h"

namespace stagehand::core {

Status PlanMemory::apply(const PlanResult& plan, Lock& lock) {
    // A unit that is planned from now on keeps the pages that it has. The cache gives up other pages before anything
    // grows.
    std::vector<uint32_t> handed_over;
    for (uint32_t i = 0; i < memory_.registry.units().size(); i++)
        if (memory_.registry.unit(i).memory == Memory::unordered && step_order_.order.contains(i))
            handed_over.push_back(i);
    for (const uint32_t index : handed_over) step_order_.unordered.hand_over(memory_.registry.unit(index));
    const uint64_t capacity_before = step_order_.unordered.capacity();
    const bool grows = plan.unordered_pages > capacity_before;
    if (!grows) SH_TRY(step_order_.unordered.resize(plan.unordered_pages, lock));
    if (Status status = memory_.placement.apply(plan.places, plan.ring_pages, plan.unpack); !status.ok()) {
        if (status.code() != SH_ERROR_BUDGET) return status;
        // Refused without any change. So the units and the cache get back what they had.
        for (const uint32_t index : handed_over) step_order_.unordered.take_back(memory_.registry.unit(index));
        (void)step_order_.unordered.resize(capacity_before, lock)
            .ok();  // not smaller than now, so the cache evicts nothing
        return status;
    }
    return grows ? step_order_.unordered.resize(plan.unordered_pages, lock) : Status();
}

Status PlanMemory::clear(Lock& lock) {
    SH_TRY(step_order_.unordered.resize(0, lock));
    return memory_.placement.clear();
}

void PlanMemory::save(bool places) {
    saved_ = {places ? memory_.placement.places() : std::vector<Place>(), memory_.ring.size(),
              step_order_.unordered.capacity(), memory_.unpack_memory.plan(),
              places ? memory_.placement.kept_places() : std::vector<uint64_t>()};
}

// Blocks that are new since then have no places.
Status PlanMemory::restore(Lock& lock) {
    saved_.places.resize(memory_.registry.units().size());
    SH_TRY(memory_.placement.apply(saved_.places, saved_.ring_pages, saved_.unpack, saved_.kept_places));
    return step_order_.unordered.resize(saved_.unordered_pages, lock);
}

void PlanMemory::forget(uint32_t unit) {
    if (unit < saved_.places.size()) saved_.places[unit] = {};
    forget_kept(unit);
}

void PlanMemory::forget_kept(uint32_t unit) {
    if (unit < saved_.kept_places.size()) saved_.kept_places[unit] = UINT64_MAX;
}

Status PlanMemory::give_back() {
    for (Unit& unit : memory_.registry.units())
        if (unit.memory == Memory::unordered) SH_TRY(memory_.placement.unmap_whole(unit));
    return memory_.placement.clear();
}

}  // namespace stagehand::core
