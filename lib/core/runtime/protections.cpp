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
        if (unit.memory == Memory::unordered) course_.unordered.pin(unit);
        if (course_.order.contains(block.unit) && unit.own.size() < unit.pages) *out_may_grow = true;
    }
    return Status();
}

void Protections::end(Unit& unit, uint64_t times) {
    times = std::min(times, unit.protections);
    if (!times) return;
    unit.protections -= times;
    if (unit.protections) return;
    units_--;
    if (unit.memory == Memory::unordered) course_.unordered.unpin(unit);
}

Status Protections::unprotect(std::span<const sh_block> ids) {
    SH_TRY(gate_.check_blocks(memory_.registry, ids));
    size_t done = 0;
    Status status;
    for (; done < ids.size(); done++) {
        const Block& block = *memory_.registry.find(ids[done]);
        if (block.detail->protections == 0) {
            status = Status(SH_ERROR_INVALID_STATE,
                            memory_.registry.name_of(block) + " is not protected" + (done ? " that many times" : ""));
            break;
        }
        block.detail->protections--;
    }
    if (!status.ok()) {
        while (done-- > 0) memory_.registry.find(ids[done])->detail->protections++;
        return status;
    }
    for (const sh_block id : ids) end(memory_.registry.unit(memory_.registry.find(id)->unit), 1);
    return Status();
}

uint64_t Protections::own_pages() const {
    uint64_t own = 0;
    for (const Unit& unit : memory_.registry.units())
        if (unit.protections) own += unit.own.size();
    return own;
}

}  // namespace stagehand::core
