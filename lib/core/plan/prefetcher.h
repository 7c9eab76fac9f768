// Prefetcher: begins loads in the order of use, as soon as the obstacles of a load were released.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "core/memory/model_memory.h"
#include "core/movement/loader.h"
#include "core/plan/order.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class Prefetcher {
public:
    Prefetcher(ModelMemory& memory, Order& order, Loader& loader) : memory_(memory), order_(order), loader_(loader) {}

    // Looks at the order again from the engine's position, after a jump or a load out of order.
    void restart() { next_ = order_.position().cursor(); }
    // Another plan or order is in force, or contents were invalidated. Resident parts are then looked at too, for one
    // round.
    void renew() noexcept;
    // Begins the loads that can begin now. Stops at the first load that has to wait for a release, or after a failure.
    // The acquire of that unit will meet the failure again and report it. `in_parts`: the engine holds views while it
    // computes. So it is worth loading into the pages that are free until the next release, although the rest of the
    // unit has to wait for that release.
    void pump(uint64_t now_ns, bool in_parts = false);

private:
    uint64_t next_candidate(uint64_t position) const;
    uint32_t free_pages(const Unit& unit, uint64_t position) const;

    ModelMemory& memory_;
    Order& order_;
    Loader& loader_;
    uint64_t next_ = 0;               // up to this position everything is present or on its way
    uint64_t cold_until_ = 0;         // up to this position resident parts may be missing, later only streamed ones
    std::vector<uint32_t> streamed_;  // entries of the order with streamed parts, ascending
};

}  // namespace stagehand::core
