// Prefetcher: begins loads in the order of use, as soon as what lies in their way was released.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "core/loader.h"
#include "core/order.h"
#include "core/registry.h"
#include "core/ring.h"

namespace stagehand::core {

// All methods are called with the runtime's mutex held.
class Prefetcher {
public:
    Prefetcher(Registry& registry, Ring& ring, Order& order, Loader& loader) : registry_(registry), ring_(ring), order_(order), loader_(loader) {}

    // Looks at the order anew from where the engine is: after a jump, a new plan, or a load out of order.
    void restart() { next_ = order_.cursor(); }
    // Begins what can be begun. Stops at the first load that has to wait for a release, or after a failure, which the acquire of
    // that unit will meet again and report.
    void pump(uint64_t now_ns);

private:
    bool may_begin(const Unit& unit, uint64_t position);

    Registry& registry_;
    Ring& ring_;
    Order& order_;
    Loader& loader_;
    uint64_t next_ = 0;   // position in the order up to which everything is there or on its way
};

}  // namespace stagehand::core
