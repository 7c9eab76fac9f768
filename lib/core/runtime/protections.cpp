#include "core/runtime/protections.h"

#include <algorithm>

namespace stagehand::core {

Status Protections::protect(std::span<const sh_block> ids, bool* out_may_grow) {
    *out_may_grow = false;
    SH_TRY(gate_.check_blocks(memory_.registry, ids));
    for (const sh_block id : ids) {
        Block& block = *memory_.registry.find(id);
        Unit& unit = memory_.registry.unit(block.unit);
        block.detail->protections++;
        if (unit.protections++) continue;
        units_++;
        if (unit.memory == Memory::unordered) step_order_.unordered.pin(unit);
        if (step_order_.order.contains(block.unit) && unit.own.size() < unit.pages) *out_may_grow = true;
    }
    return Status();
}

void Protections::end(Unit& unit, uint64_t times) {
    times = std::min(times, unit.protections);
    if (!times) return;
    unit.protections -= times;
    if (unit.protections) return;
    units_--;
    if (unit.memory == Memory::unordered) step_order_.unordered.unpin(unit);
}

void Protections::unprotect(std::span<const sh_block> ids) {
    for (const sh_block id : ids) {
        const Block* const block = memory_.registry.find(id);
        if (!block) continue;
        block->detail->protections--;
        end(memory_.registry.unit(block->unit), 1);
    }
}

uint64_t Protections::own_pages() const {
    uint64_t own = 0;
    for (const Unit& unit : memory_.registry.units())
        if (unit.protections) own += unit.own.size();
    return own;
}

}  // namespace stagehand::core
