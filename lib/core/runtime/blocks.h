// Blocks: registers blocks, replaces their sources, unregisters blocks, and describes the state of a block.
#pragma once

#include <span>

#include <stagehand/parts.h>
#include <stagehand/runtime.h>

#include "base/status.h"
#include "core/runtime/budget_share.h"
#include "core/runtime/graphs.h"
#include "core/runtime/plan_in_force.h"
#include "core/runtime/protections.h"
#include "core/runtime/sources.h"
#include "core/runtime/step_order.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class Blocks {
public:
    Blocks(Gate& gate, BudgetShare& share, ModelMemory& memory, Movers& movers, StepOrder& step_order,
           Protections& protections, PlanInForce& plan, const Graphs& graphs, Sources& sources)
        : gate_(gate),
          share_(share),
          memory_(memory),
          movers_(movers),
          step_order_(step_order),
          protections_(protections),
          plan_(plan),
          graphs_(graphs),
          sources_(sources) {}

    // Gives up the mutex while it packs segments.
    Status add(std::span<const sh_block_desc> descs, sh_block* out_ids, Lock& lock);
    // Registers a set and its members.
    Status add_set(const sh_set_options& options, std::span<const sh_block_desc> members, sh_block* out_ids,
                   sh_set* out, Lock& lock);
    Status remove_set(sh_set set, Lock& lock);
    // Registers the parts of a block. There are at most as many as `out_parts` has room for.
    Status add_parts(const sh_block_desc& desc, const sh_part_options& options, std::span<sh_part* const> out_parts,
                     uint64_t* out_count, Lock& lock);
    // Gives a block whose update has begun other segments. Gives up the mutex while it packs them.
    Status replace_sources(sh_block id, std::span<const sh_segment> segments, Lock& lock);
    Status remove(std::span<const sh_block> ids, Lock& lock);
    Status describe(sh_block id, sh_block_state* out) const;
    Status describe_set(sh_set set, sh_set_info* out);

private:
    uint64_t budget_pages() const;
    Status pack(std::span<const sh_block_desc> descs, std::vector<BlockCopies>* out, Lock& lock);
    Status pack(const sh_block_desc& desc, BlockCopies* out) const;
    Status pack_and_wait(std::span<const sh_block_desc> descs, std::vector<BlockCopies>* out, Lock& lock);
    Status find_to_replace(sh_block id, Block** out, Lock& lock) const;
    void forget_units(std::span<const uint32_t> gone, Lock& lock);

    Gate& gate_;
    BudgetShare& share_;
    ModelMemory& memory_;
    Movers& movers_;
    StepOrder& step_order_;
    Protections& protections_;
    PlanInForce& plan_;
    const Graphs& graphs_;
    Sources& sources_;
};

}  // namespace stagehand::core
