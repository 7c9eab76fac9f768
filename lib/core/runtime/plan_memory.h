// PlanMemory: the device memory that a plan gives to the blocks, and its way off the device and back in a pause.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/plan_terms.h"
#include "core/runtime/step_order.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods. Every use of the memory has ended.
class PlanMemory {
public:
    PlanMemory(ModelMemory& memory, StepOrder& step_order) : memory_(memory), step_order_(step_order) {}

    uint64_t pages() const { return memory_.placement.pages(); }  // that the runtime holds
    // Returns SH_ERROR_BUDGET without any change if there is no room.
    Status apply(const PlanResult& plan, Lock& lock);
    Status clear(Lock& lock);
    // Does it for good, when the runtime is closed.
    Status give_back();

    // Notes what clear() will take away. restore() takes it again: the same places, if they were noted.
    void save(bool places);
    Status restore(Lock& lock);
    // Forgets the places of a unit that is gone, or those of its packed weights, because it has other sources.
    void forget(uint32_t unit);
    void forget_kept(uint32_t unit);

private:
    ModelMemory& memory_;
    StepOrder& step_order_;
    struct {
        std::vector<Place> places;
        uint32_t ring_pages = 0;
        uint64_t unordered_pages = 0;
        UnpackPlan unpack;
        std::vector<uint64_t> kept_places;  // see Placement: graphs find packed weights there
    } saved_;
};

}  // namespace stagehand::core
