// GraphResidents: brings to the device what a launch of a graph expects there.
#pragma once

#include "base/status.h"
#include "core/movement/graph.h"
#include "core/runtime/clearance.h"
#include "core/runtime/movers.h"

namespace stagehand::core {

// The caller holds the runtime's mutex. It is given up.
class GraphResidents {
public:
    GraphResidents(Gate& gate, ModelMemory& memory, Movers& movers, Clearance& clearance)
        : gate_(gate), memory_(memory), movers_(movers), clearance_(clearance) {}

    // Afterwards nobody needs the contents of the ring, the stream waits for the resident pages of the graph's blocks,
    // and the packed weights that the graph unpacks on the device are on their way there.
    Status bring(const Graph& graph, sh_stream stream, Lock& lock);

private:
    Status clear_ring(Lock& lock);
    Status load_own(Unit& unit, Lock& lock);
    Status load_units(const Graph& graph, sh_stream stream, Lock& lock);

    Gate& gate_;
    ModelMemory& memory_;
    Movers& movers_;
    Clearance& clearance_;
};

}  // namespace stagehand::core
