// Access: gives views of blocks to an engine and takes them back. The bytes of a view are present or on their way.
#pragma once

#include <cstdint>
#include <span>

#include <stagehand/members.h>
#include <stagehand/streaming.h>

#include "base/status.h"
#include "core/runtime/fetcher.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods, and no capture is under way.
class Access {
public:
    Access(Gate& gate, ModelMemory& memory, Movers& movers, StepOrder& step_order, Views& views,
           const PlanInForce& plan, Fetcher& fetcher)
        : gate_(gate),
          memory_(memory),
          movers_(movers),
          step_order_(step_order),
          views_(views),
          plan_(plan),
          fetcher_(fetcher) {}

    Status acquire(sh_block id, sh_stream stream, uint32_t flags, sh_view* out, Lock& lock);
    Status acquire_many(std::span<const sh_block> ids, sh_stream stream, uint32_t flags, std::span<sh_view* const> out,
                        Lock& lock);
    Status release(Block& block, sh_stream stream);
    // `chances`: how probable the use of each is; none: certain.
    Status prefetch(std::span<const sh_block> ids, std::span<const float> chances, Lock& lock);
    // These calls are for members of a set.
    Status acquire_members(sh_set set, std::span<const uint32_t> members, sh_stream stream, uint32_t flags,
                           sh_view* out_pool, uint32_t* out_slots, Lock& lock);
    Status release_members(sh_set set, std::span<const uint32_t> members, sh_stream stream);
    Status prefetch_members(sh_set set, std::span<const uint32_t> members, std::span<const float> chances, Lock& lock);
    // Loads the next blocks in the order, as far as the ring has room for them.
    void look_ahead(uint64_t now_ns, bool in_parts = false);

private:
    void give(Block& block, Unit& unit, sh_stream stream, uint32_t view_flags, sh_view* out);

    Gate& gate_;
    ModelMemory& memory_;
    Movers& movers_;
    StepOrder& step_order_;
    Views& views_;
    const PlanInForce& plan_;
    Fetcher& fetcher_;
};

}  // namespace stagehand::core
