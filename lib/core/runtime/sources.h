// Sources: changes of contents. The engine changes a source, or it changes a mutable block on the device.
#pragma once

#include <span>

#include "base/status.h"
#include "core/runtime/clearance.h"
#include "core/runtime/graphs.h"
#include "core/runtime/step_order.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class Sources {
public:
    Sources(Gate& gate, ModelMemory& memory, Movers& movers, StepOrder& step_order, Clearance& clearance,
            Graphs& graphs)
        : gate_(gate),
          memory_(memory),
          movers_(movers),
          step_order_(step_order),
          clearance_(clearance),
          graphs_(graphs) {}

    Status invalidate(std::span<const sh_block> ids);
    Status update_begin(std::span<const sh_block> ids, Lock& lock);
    Status update_end(std::span<const sh_block> ids);
    Status mark_dirty(sh_block id);
    Status write_back(std::span<const sh_block> ids, Lock& lock);
    Status write_back_all(Lock& lock);
    // Waits until the sources of these blocks hold all that was changed on the device, and nothing reads or writes the
    // sources.
    Status leave_alone(std::span<const sh_block> ids, Lock& lock);

private:
    Status write_back(std::span<const uint32_t> indices, Lock& lock);
    bool is_left_alone(const Block& block);
    Status spoil(std::span<const sh_block> ids, std::span<const uint32_t> units);
    Status wait_for_sources(std::span<const sh_block> ids, std::span<const uint32_t> units, Lock& lock);
    Status note_new_contents(std::span<const sh_block> ids);
    void end_update(std::span<const sh_block> ids);  // without spoiling what is on the device

    Gate& gate_;
    ModelMemory& memory_;
    Movers& movers_;
    StepOrder& step_order_;
    Clearance& clearance_;
    Graphs& graphs_;
    uint64_t updates_ = 0;  // that have begun
};

}  // namespace stagehand::core
