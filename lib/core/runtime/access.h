// Access: gives views of blocks to an engine and takes them back. The bytes of a view are present or on their way.
#pragma once

#include <cstdint>
#include <span>

#include <stagehand/streaming.h>

#include "base/status.h"
#include "core/runtime/clearance.h"
#include "core/runtime/graphs.h"
#include "core/runtime/parts.h"
#include "core/runtime/plan_in_force.h"
#include "core/runtime/views.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods, and no capture is under way.
class Access {
public:
    Access(Parts& parts, Clearance& clearance, Views& views, PlanInForce& plan, Graphs& graphs)
        : parts_(parts), clearance_(clearance), views_(views), plan_(plan), graphs_(graphs) {}

    Status acquire(sh_block id, sh_stream stream, uint32_t flags, sh_view* out, Lock& lock);
    Status acquire_many(std::span<const sh_block> ids, sh_stream stream, uint32_t flags, std::span<sh_view* const> out,
                        Lock& lock);
    Status release(Block& block, sh_stream stream);
    Status prefetch(std::span<const sh_block> ids, Lock& lock);
    // Loads the next blocks in the order, as far as the ring has room for them.
    void look_ahead(uint64_t now_ns, bool in_parts = false);

private:
    void arrive(Unit& unit);
    Status begin_bringing(Unit& unit, uint32_t* view_flags, Lock& lock);
    Status finish_bringing(Unit& unit, sh_stream stream, uint32_t flags, uint32_t* view_flags, Lock& lock);
    Status finish_and_note(Unit& unit, sh_stream stream, uint32_t flags, uint32_t* view_flags, bool* waited,
                           Lock& lock);
    void give(Block& block, Unit& unit, sh_stream stream, uint32_t view_flags, sh_view* out);
    Status place_unordered(Unit& unit, Lock& lock);

    Parts& parts_;
    Clearance& clearance_;
    Views& views_;
    PlanInForce& plan_;
    Graphs& graphs_;
};

}  // namespace stagehand::core
