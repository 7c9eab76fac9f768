// Graphs: launches of captured graphs. A launch fills the ring without calling the library.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "core/movement/graph.h"
#include "core/runtime/graph_residents.h"
#include "core/runtime/step_count.h"
#include "core/runtime/step_order.h"
#include "core/runtime/views.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class Graphs {
public:
    Graphs(Gate& gate, ModelMemory& memory, Movers& movers, StepOrder& step_order, GraphResidents& residents,
           Views& views, StepCount& count)
        : gate_(gate),
          memory_(memory),
          movers_(movers),
          step_order_(step_order),
          residents_(residents),
          views_(views),
          count_(count) {}
    ~Graphs();

    // Reserves room for one graph, so that add() cannot fail.
    void expect_one() { graphs_.reserve(graphs_.size() + 1); }
    // Takes the captured graph and returns its id.
    uint64_t add(std::unique_ptr<Graph> graph) noexcept;
    Status enter(uint64_t id, sh_stream stream, Lock& lock);
    Status leave(uint64_t id, sh_stream stream);
    Status destroy(uint64_t id, Lock& lock);

    // The launch of the graph that was entered has the memory in which packed weights arrive for itself.
    bool entered_unpacks() const { return entered_ && entered_->unpack_memory; }
    bool entered_uses(uint32_t unit) const { return entered_ && entered_->uses(unit); }
    bool any_uses(uint32_t unit) const;  // a graph that can be launched uses the unit

    // The plan must not change, because a capture is under way or a graph can be launched.
    bool hold_the_plan() const;
    Status held() const;
    // drop() makes all graphs stale, so that the plan may change. want_drop() has that done when the next step begins.
    Status drop(Lock& lock);
    void want_drop() { drop_wanted_ = true; }
    // Does what want_drop() asked for. Held views or an entered graph put it off until a later step.
    Status drop_if_wanted(Lock& lock);

    // Makes the stream wait for the launch that loads the unit. Waits on the host if the stream is the host.
    Status follow_launch(Unit& unit, sh_stream stream, uint32_t flags, uint32_t* view_flags, Lock& lock);
    // Waits on the host until no launch reads any source.
    Status wait_for_launches(Lock& lock);

private:
    Graph* find(uint64_t id);
    Status leave(Graph& graph, sh_stream stream);
    Status wait_for_launch(sh_backend_event done, Lock& lock);

    Gate& gate_;
    ModelMemory& memory_;
    Movers& movers_;
    StepOrder& step_order_;
    GraphResidents& residents_;
    Views& views_;
    StepCount& count_;
    std::vector<std::unique_ptr<Graph>> graphs_;
    Graph* entered_ = nullptr;  // between enter and leave
    sh_stream entered_on_ = SH_STREAM_HOST;
    // The span of a launch outside a step. Such a launch counts as a step.
    std::optional<StepCount::Span> launch_;
    uint64_t next_ = 1;
    uint32_t launch_waits_ = 0;  // calls that wait until a launch has ended
    bool drop_wanted_ = false;
};

}  // namespace stagehand::core
