// Protections: counts the blocks and scopes that are protected, which stay on the device whatever others ask for.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "core/runtime/step_order.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class Protections {
public:
    explicit Protections(Gate& gate, ModelMemory& memory, StepOrder& step_order)
        : gate_(gate), memory_(memory), step_order_(step_order) {}

    // `out_may_grow`: a plan could give some of the blocks more memory than they have.
    Status protect(std::span<const sh_block> ids, bool* out_may_grow);
    // Passes over blocks that do not exist any more.
    void unprotect(std::span<const sh_block> ids);
    void end(Unit& unit, uint64_t times);

    // In a scope, all that the runtime holds is protected. begin_scope() is true for the first scope, end_scope() for
    // the last.
    bool begin_scope() { return scopes_++ == 0; }
    bool end_scope() { return --scopes_ == 0; }

    bool all() const { return scopes_ > 0; }
    bool any() const { return scopes_ > 0 || units_ > 0; }
    uint64_t own_pages() const;  // resident pages of protected units

private:
    Gate& gate_;
    ModelMemory& memory_;
    StepOrder& step_order_;
    uint32_t scopes_ = 0;
    uint64_t units_ = 0;  // units that are protected one by one
};

}  // namespace stagehand::core
