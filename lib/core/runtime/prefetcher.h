// Prefetcher: begins loads in the order of use, as soon as what lies in their way was released.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "core/movement/loader.h"
#include "core/memory/registry.h"
#include "core/memory/ring.h"
#include "core/runtime/order.h"

namespace stagehand::core {

// All methods are called with the runtime's mutex held.
class Prefetcher {
public:
    Prefetcher(Registry& registry, Ring& ring, Contents& contents, Order& order, Loader& loader)
        : registry_(registry), ring_(ring), contents_(contents), order_(order), loader_(loader) {}

    // Looks at the order anew from where the engine is: after a jump, or a load out of order.
    void restart() { next_ = order_.cursor(); }
    // Another plan or order is in force, or contents were invalidated: resident parts have to be looked at too, for one round.
    void renew() noexcept;
    // Begins what can be begun. Stops at the first load that has to wait for a release, or after a failure, which the acquire of
    // that unit will meet again and report. `in_parts`: the engine holds views while it computes, so the pages that are free until the
    // next release are worth loading into, though the rest of the unit has to wait for it.
    void pump(uint64_t now_ns, bool in_parts = false);

private:
    uint64_t next_candidate(uint64_t position) const;
    uint32_t free_pages(const Unit& unit, uint64_t position) const;

    Registry& registry_;
    Ring& ring_;
    Contents& contents_;
    Order& order_;
    Loader& loader_;
    uint64_t next_ = 0;          // position in the order up to which everything is there or on its way
    uint64_t cold_until_ = 0;    // up to here resident parts may be missing; beyond, only streamed ones can be
    std::vector<uint32_t> streamed_;   // entries of the order with streamed parts, ascending
};

}  // namespace stagehand::core
